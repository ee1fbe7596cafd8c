"""Secret inputs: each job has its own, whatever others send at the same time."""

from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.conftest import Service


def test_the_same_request_with_secrets_in_its_body_can_be_sent_many_times_at_once(service: Service) -> None:
    with httpx.Client(base_url=service.url, timeout=60) as http:
        example = http.get("/v1/operations/secure_aggregation").json()["example"]

        def run(_: int) -> str:
            job = http.post("/v1/jobs", json=example, headers={"Prefer": "wait=30"}).json()
            return str(job["status"])

        with ThreadPoolExecutor(6) as threads:
            states = list(threads.map(run, range(60)))
    assert states == ["succeeded"] * 60
