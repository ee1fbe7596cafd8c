// What the compiler must say of a program that uses the generated types.
import type { components, operations } from "./openapi-typescript";
import { getJob, submitJob } from "./hey-api/sdk.gen";
import type { RsiJob } from "./hey-api/types.gen";

type Submission = NonNullable<operations["submit_job"]["requestBody"]>["content"]["application/json"];

const inline: Submission = {
  operation: "rsi",
  params: { period: 14 },
  inputs: { close: { data: [1, 2, null], dtype: "float64" } },
};
const matrix: RsiJob = { operation: "rsi", params: { period: 14 }, inputs: { close: { data: [[1, 2], [3, 4]] } } };
const stored: RsiJob = { operation: "rsi", params: { period: 14 }, inputs: { close: { array: "blake3:0" } } };
// @ts-expect-error a misspelt parameter
const misspelt: Submission = { operation: "rsi", params: { perod: 14 }, inputs: { close: { data: [1] } } };
// @ts-expect-error the period is missing
const missing: RsiJob = { operation: "rsi", params: {}, inputs: { close: { data: [1] } } };
// @ts-expect-error there is no such operation
const unknown: Submission = { operation: "rsy", params: {}, inputs: {} };

export async function status(): Promise<components["schemas"]["Job"]["status"] | undefined> {
  const submitted = await submitJob({ body: matrix });
  const found = await getJob({ path: { job_id: submitted.data?.id ?? "" } });
  return found.data?.status;
}
export { inline, misspelt, missing, stored, unknown };
