"""What one key is told is the same whether another is busy or not, but for times.

The worker is suspended, so that jobs of both keys wait for the same launch.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from rq import Worker
from rq.suspension import resume, suspend

from tests.app.conftest import Live, live
from tests.workers.conftest import Desk
from tests.workers.operations import SHARED
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.store.spool import SpoolStore

PRICES = 1000
CROWD = 6  # jobs of the other key, of each period

# Headers that say when, which, or how long the text of a time is.
TIMES = {"date", "server-timing", "x-request-id", "etag", "content-length"}

Exchanges = list[tuple[str, int, dict[str, str], Any]]  # what was asked, status, headers, body


@dataclass
class Tenants:
    """One service, and the keys of two who do not know of each other."""

    api: Live
    desk: Desk
    busy: str
    curious: str

    def submit(self, token: str, period: int, first: float, **fields: Any) -> httpx.Response:
        """An RSI of prices that no other number of `first` gives."""
        data = [first + price * 7919 % 101 for price in range(PRICES)]
        body = {"operation": "rsi", "params": {"period": period}, "inputs": {"prices": {"data": data}}, **fields}
        answer = self.ask(token, "POST", "/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return answer

    def ask(self, token: str, method: str, path: str, **how: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", **how.pop("headers", {})}
        return self.api.http.request(method, path, headers=headers, **how)

    def probe(self, crowd: Callable[[], None]) -> tuple[Exchanges, list[str]]:
        """All that the curious one is told of two jobs, of which one is alike those of the crowd; their ids."""
        exchanges: Exchanges = []

        def ask(method: str, path: str, **how: Any) -> httpx.Response:
            answer = self.ask(self.curious, method, path, **how)
            exchanges.append((f"{method} {path}", answer.status_code, dict(answer.headers), body_of(answer)))
            return answer

        with self.suspended():
            crowd()
            jobs = []
            for period, first in ((14, 1.0), (14, 2.0), (15, 1.0)):
                answer = self.submit(self.curious, period, first, deadline_s=3600.0)
                exchanges.append(("POST /v1/jobs", answer.status_code, dict(answer.headers), body_of(answer)))
                jobs.append(answer.json()["id"])
            paths = [f"/v1/jobs/{job}{rest}" for job in jobs for rest in ("", "/result")]
            paths += ["/v1/jobs?limit=3", "/readyz", "/health"]
            for path in (*paths, "/gpu-health", "/gpu-memory", "/metrics", "/performance-metrics"):
                ask("GET", path)
        for job in jobs:
            done = ask("GET", f"/v1/jobs/{job}", headers={"Prefer": "wait=50"})
            assert done.json()["status"] == "succeeded", done.text
            for rest in ("", "/result", "/result/rsi", "/events"):
                ask("GET", f"/v1/jobs/{job}{rest}")
        ask("GET", "/v1/jobs?limit=3")
        return exchanges, jobs

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """No worker takes a job."""
        with connect(self.api.redis_url) as redis:
            suspend(redis)
            self.desk.until(lambda: {worker.get_state() for worker in Worker.all(redis)} == {"suspended"}, "it works")
            yield
            resume(redis)


@pytest.fixture
def tenants(redis_url: str, tmp_path: Path) -> Iterator[Tenants]:
    home = tmp_path / "home"
    busy, curious = (create_key(home, name, ["submit", "read", "cancel"]) for name in ("busy", "curious"))
    with live(home, redis_url, SHARED, max_result_numbers=2 * PRICES, max_inline_numbers=2 * PRICES) as api:
        desk = Desk(redis_url, home, api.queue, SpoolStore(home / "store"))
        try:
            desk.start_worker(WARPDESK_OPERATIONS="tests.workers.operations:SHARED")
            yield Tenants(api, desk, busy, curious)
        finally:
            desk.close()


def body_of(answer: httpx.Response) -> Any:
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    return answer.json() if "json" in answer.headers["content-type"] else answer.text


def but_for_times(exchanges: Exchanges, jobs: list[str]) -> Exchanges:
    """Times and the ids of jobs left out; of how long to wait, that it is a power of two."""

    def plain(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: plain(inner, found) for inner, found in value.items()}
        if isinstance(value, list):
            return [plain(name, found) for found in value]
        if isinstance(value, str):
            for number, job in enumerate(jobs):
                value = value.replace(job, f"job {number}")
        if name in TIMES or re.search(r"(_at|^at|_seconds|request_id)$", name):
            return None if value is None else "some"
        if name == "retry-after":
            return int(value).bit_count()
        return value

    return [(plain("", path), status, plain("", headers), plain("", body)) for path, status, headers, body in exchanges]


def test_who_is_alone_is_told_the_same_as_who_shares_launches_with_another(tenants: Tenants) -> None:
    def crowd() -> None:
        for first in range(CROWD):
            for period in (14, 20):
                tenants.submit(tenants.busy, period, 10.0 + first)

    tenants.submit(tenants.curious, 14, 0.0)  # there is a job before those of each probe

    quiet, shared = tenants.probe(lambda: None), tenants.probe(crowd)

    records = [tenants.api.queue.get(job) for job in shared[1]]
    sizes = [record.provenance.batch_size for record in records if record and record.provenance]
    assert sizes == [CROWD + 2, CROWD + 2, 1]
    for alone, beside in zip(but_for_times(*quiet), but_for_times(*shared), strict=True):
        assert alone == beside
    final = [body for path, _, _, body in shared[0] if path.startswith("GET /v1/jobs/") and "provenance" in body]
    exchanges = {
        (body["provenance"]["batch_size"], body["provenance"]["batch_reason"]) for body in final if body["provenance"]
    }
    assert exchanges == {(2, "drained"), (1, "drained")}
