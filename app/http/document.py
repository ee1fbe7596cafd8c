"""The OpenAPI document: FastAPI's own, plus a request body and example for each operation, and the scope of routes."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from warpdesk.models import JobEvent, NewBudget, Problem
from warpdesk_server.app.arrays.schemas import DEFAULT_DTYPE
from warpdesk_server.app.datasets.schemas import NewDataset, NewRows
from warpdesk_server.app.jobs.operations import example
from warpdesk_server.app.jobs.schemas import Bundle, Submission
from warpdesk_server.app.kit import errors
from warpdesk_server.app.rounds.schemas import BODIES
from warpdesk_server.kernels.operation import Computation, Input

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer <key>"},
    "api_key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "join_token": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer <join token of a round>"},
}
# The depth ends here: generators of clients in other languages do not take a schema that refers to itself.
_NUMBERS = {
    "title": "Numbers",
    "description": "A number, or lists of numbers, as deep as the array has axes; row-major, null is NaN",
    "anyOf": [{"type": "number"}, {"type": "null"}, {"type": "array", "items": {}}],
}

_DESCRIPTION = """\
Send a job with `POST /v1/jobs`, and read its answer there (`Prefer: wait=10`) or at `/v1/jobs/{id}/result`.

Each operation has its own schema of `params` and `inputs`: `GET /v1/operations` tells them too.
Every error is a problem document (RFC 9457); `/problems/{code}` says what its `code` means and what helps.
"""
_TAGS = [
    {"name": "jobs", "description": "Submit jobs, follow them, read their answers, cancel and erase them."},
    {"name": "operations", "description": "What can be computed, with the JSON Schema of its parameters."},
    {"name": "arrays", "description": "Numbers that are uploaded once and used by many jobs."},
    {"name": "datasets", "description": "Rows that are appended as time goes on, read by range and version."},
    {"name": "budgets", "description": "Privacy budgets, what was charged to them, and the proof of it."},
    {
        "name": "rounds",
        "description": "Sums of vectors by secure aggregation: the service sees no single vector.",
    },
    {"name": "administration", "description": "The queue, API keys and the audit log, for administrators."},
    {"name": "dead letters", "description": "Jobs that were given up, for administrators."},
    {"name": "health", "description": "How the service, its workers and its GPUs are, and how fast."},
    {"name": "problems", "description": "What each error code means."},
]

_EITHER: list[dict[str, list[str]]] = [{"bearer": []}, {"api_key": []}]


def install(api: FastAPI, operations: Mapping[str, Computation]) -> None:
    """Set `api.openapi` to the function that writes this OpenAPI document once."""

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _write(api, operations)
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def _write(api: FastAPI, operations: Mapping[str, Computation]) -> dict[str, Any]:
    written = get_openapi(
        title=api.title,
        version=api.version,
        summary=api.summary,
        description=_DESCRIPTION,
        routes=api.routes,
        tags=_TAGS,
        servers=[{"url": "/", "description": "This service"}],
    )
    components = written.setdefault("components", {})
    models = components.setdefault("schemas", {})
    bodies: list[type[Any]] = [Problem, Submission, JobEvent, NewBudget, NewDataset, NewRows, *BODIES]
    for model in bodies:
        models |= _component(model)
    for name in ("HTTPValidationError", "ValidationError"):
        models.pop(name, None)  # FastAPI's own error schema, which is never sent
    components["securitySchemes"] = _SCHEMES
    for path in written["paths"].values():
        for route in path.values():
            if "401" in route["responses"]:
                route.setdefault("security", _EITHER)
            _drop_framework_error(route)
            route["responses"].setdefault(
                "422", errors.documented("invalid-request")[422]
            )  # an unknown query parameter
    submit = written["paths"]["/v1/jobs"]["post"]
    submit["requestBody"] = _submission(operations, models)
    written["paths"]["/v1/budgets/{budget_id}/quote"]["post"]["requestBody"] = submit["requestBody"]
    written["paths"]["/v1/jobs/batch"]["post"]["requestBody"] = _bundle(operations)
    return written


def _component(model: type[Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), model.__name__: schema}


def _drop_framework_error(route: dict[str, Any]) -> None:
    """Remove FastAPI's 422 response from a route in the OpenAPI document: the service sends problem documents
    instead."""
    answer = route["responses"].get("422", {})
    if "HTTPValidationError" in str(answer.get("content", {}).get("application/json", "")):
        del answer["content"]["application/json"]
        if not answer["content"]:
            del route["responses"]["422"]


def _submission(operations: Mapping[str, Computation], models: dict[str, Any]) -> dict[str, Any]:
    """The schema of a submission in the OpenAPI document: one variant for each operation, with its own parameters
    and inputs."""
    common = models.pop("Submission")
    models.pop("InlineInput")
    models["Numbers"] = _NUMBERS
    members = []
    for operation in operations.values():
        params = operation.params.model_json_schema(ref_template="#/components/schemas/" + operation.name + "_{model}")
        for name, definition in params.pop("$defs", {}).items():
            models[f"{operation.name}_{name}"] = definition
        models[f"{operation.name}_params"] = params
        own = {
            "operation": {"const": operation.name, "type": "string"},
            "params": {"$ref": f"#/components/schemas/{operation.name}_params"},
            "inputs": _inputs(operation),
        }
        required = ["operation"]
        required += ["params"] if params.get("required") else []
        required += ["inputs"] if any(expected.required for expected in operation.inputs) else []
        properties = {**common["properties"], **own}
        if operation.randomness != "seed":
            properties.pop("seed")
        models[f"{operation.name}_job"] = {
            **common,
            "title": f"{operation.name} job",
            "description": operation.summary,
            "properties": properties,
            "required": required,
        }
        members.append({"$ref": f"#/components/schemas/{operation.name}_job"})
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": members},
                "examples": {
                    operation.name: {"summary": operation.summary, "value": example(operation)}
                    for operation in operations.values()
                },
            }
        },
    }


def _bundle(operations: Mapping[str, Computation]) -> dict[str, Any]:
    """The schema of a bundle in the OpenAPI document: submissions of the operations that may be among several."""
    offered = [operation for operation in operations.values() if not operation.confidential]
    schema = Bundle.model_json_schema()
    schema["properties"]["jobs"]["items"] = {
        "oneOf": [{"$ref": f"#/components/schemas/{operation.name}_job"} for operation in offered]
    }
    examples = {"jobs": [example(operation) for operation in offered[:2]]}
    return {"required": True, "content": {"application/json": {"schema": schema, "example": examples}}}


def _inputs(operation: Computation) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {expected.shown: _input(expected) for expected in operation.inputs},
        "required": [expected.shown for expected in operation.inputs if expected.required],
    }


def _input(expected: Input) -> dict[str, Any]:
    ranks = " or ".join(str(rank) for rank in expected.ranks)
    earlier = f"; {expected.name!r} is taken too" if expected.renamed else ""
    dtype: dict[str, Any] = {"type": "string", "enum": list(expected.dtypes)}
    required = ["data"]
    if DEFAULT_DTYPE in expected.dtypes:
        dtype["default"] = DEFAULT_DTYPE
    else:
        required.append("dtype")
    inline = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"data": {"$ref": "#/components/schemas/Numbers"}, "dtype": dtype},
        "required": required,
    }
    return {
        "description": f"{expected.doc} ({', '.join(expected.dtypes)}; rank {ranks}){earlier}",
        "oneOf": [
            {"$ref": "#/components/schemas/StoredInput"},
            {"$ref": "#/components/schemas/DatasetInput"},
            inline,
        ],
    }
