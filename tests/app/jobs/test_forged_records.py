"""Forged records: what a worker's account of Redis can write about other jobs is not believed."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from tests.app.access.test_auth import bearer
from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import COMPUTATIONS, work
from tests.app.conftest import Live, live, unlike
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.jobs import completions
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import CLOSED, CLOSED_SECONDS, EVENTS, LEASES, job_key, owner_key
from warpdesk_server.workers.queue.protocol import CLAIM, Event, digest_of_claim

INVENTED, TOKEN = "job_" + "2" * 32, "f" * 32
HIDES = {"id": INVENTED, "operation": "hide", "params": {"count": 1}}


@dataclass
class Forger:
    """An attacker with a key, a worker's key and account of Redis; and the owner who is attacked."""

    api: Live
    redis: redis.Redis
    worker: httpx.Client
    own: httpx.Client
    owner: httpx.Client

    def answered(self, owner: httpx.Client) -> str:
        """The id of a job of the owner that has a result."""
        job_id = submitted(owner)
        work(self.api.queue, self.api.store, job_id)
        return job_id

    def record(self, job_id: str, **changes: Any) -> dict[str, Any]:
        """The record of a job in Redis, with these changes of its request."""
        found = {name.decode(): value.decode() for name, value in self.redis.hgetall(job_key(job_id)).items()}
        if not changes:
            return found
        return {**found, "request": json.dumps({**json.loads(found["request"]), **changes})}

    def publish(self, job_id: str, record: dict[str, Any]) -> None:
        event = Event(job=job_id, number=9, event=record["state"], at=time.time(), attempt=1)
        self.redis.publish(EVENTS, f"{event.model_dump_json()}\n{json.dumps(record)}")

    def write(self, job_id: str, record: dict[str, Any], attempt: int = 1) -> None:
        """Write a record of a running job."""
        mine = {"attempt": attempt, "state": "running", "worker": "gone", "claim": f"1 {digest_of_claim(TOKEN)}"}
        self.redis.hset(job_key(job_id), mapping={**record, **mine})

    def secret_of(self, owner: httpx.Client) -> tuple[str, str]:
        """The owner's id, and the id of an array of that owner."""
        array_id: str = owner.put("/v1/arrays", content=npy(np.arange(7.0)), headers=NPY).json()["id"]
        request = json.loads(self.record(submitted(owner))["request"])
        return request["owner"], array_id

    def is_there(self, array_id: str) -> bool:
        return self.owner.get(f"/v1/arrays/{array_id}").status_code == 200


def submitted(owner: httpx.Client, **body: Any) -> str:
    answer = owner.post("/v1/jobs", json={**unlike(), **body})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


@pytest.fixture
def forger(redis_url: str, tmp_path: Path) -> Iterator[Forger]:
    scopes = ["submit", "read", "cancel"]
    tokens = [create_key(tmp_path, name, given) for name, given in (("w", ["worker"]), ("a", scopes), ("b", scopes))]
    with live(tmp_path, redis_url) as api, ExitStack() as stack:
        https = [
            stack.enter_context(httpx.Client(base_url=api.url, headers=bearer(token), timeout=60)) for token in tokens
        ]
        yield Forger(api, stack.enter_context(redis.Redis.from_url(redis_url)), *https)


def test_a_wait_is_answered_with_no_record_of_another_job(forger: Forger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "SAFETY_POLL", 0.1)
    victim, published, written = forger.answered(forger.owner), submitted(forger.own), submitted(forger.own)
    before = forger.redis.hgetall(job_key(written))
    watches = forger.api.app.state.services.completions._watches
    with ThreadPoolExecutor(3) as threads:

        def wait(job: str) -> Any:
            answer = threads.submit(lambda: forger.own.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=50"}))
            wait_until(lambda: job in watches)
            return answer

        first = wait(published)
        forger.publish(published, forger.record(victim))
        work(forger.api.queue, forger.api.store, published)
        document = first.result().json()
        assert (document["id"], document["status"], document["result"]["job"]) == (published, "succeeded", published)

        second = wait(written)
        forger.redis.hset(job_key(written), mapping=forger.record(victim))
        document = second.result().json()
        assert (document["id"], document["status"], document["result"]) == (written, "queued", None)
    for path in (f"/v1/jobs/{written}", f"/v1/jobs/{written}/result", f"/v1/jobs/{victim}"):
        assert forger.own.get(path).json()["code"] == "unknown-job"
    assert [job["id"] for job in forger.own.get("/v1/jobs").json()["jobs"]] == [published]
    forger.redis.hset(job_key(written), mapping=before)
    assert forger.own.get(f"/v1/jobs/{written}").json()["id"] == written
    assert forger.owner.get(f"/v1/jobs/{victim}/result").status_code == 200


def test_another_owners_job_in_ones_own_list_is_not_shown(forger: Forger) -> None:
    victim, own = submitted(forger.owner), submitted(forger.own)
    owner = json.loads(forger.record(own)["request"])["owner"]
    forger.redis.zadd(owner_key(owner), {victim: 0})
    assert [job["id"] for job in forger.own.get("/v1/jobs").json()["jobs"]] == [own]


def test_an_end_that_is_published_of_no_job_erases_nothing(forger: Forger) -> None:
    owner, array_id = forger.secret_of(forger.owner)
    inputs = {"values": {"data": [1.0]}, "seeds": {"data": [2.0]}}
    own = submitted(forger.own, operation="hide", params={"count": 1}, inputs=inputs)
    theirs = {**HIDES, "owner": owner, "inputs": {"seeds": array_id}}
    forged = {**forger.record(own, **theirs), "state": "canceled", "ended_at": time.time() + 1e6}
    request = json.loads(forger.record(own)["request"])
    assert forger.api.store.find(request["owner"], request["inputs"]["seeds"]) is not None
    forger.publish(INVENTED, forged)
    forger.own.post(f"/v1/jobs/{own}/cancel")  # ends of jobs are handled in their order
    wait_until(lambda: forger.api.store.find(request["owner"], request["inputs"]["seeds"]) is None)
    assert forger.is_there(array_id)


def test_a_worker_beside_the_store_deletes_nothing_for_a_record_that_was_not_signed(forger: Forger) -> None:
    victim, (owner, array_id) = forger.answered(forger.owner), forger.secret_of(forger.owner)
    theirs = {**HIDES, "owner": owner, "inputs": {"seeds": array_id}}
    other = "job_" + "3" * 32
    forger.write(other, forger.record(victim))  # with the request of the other job and its MAC
    forger.write(INVENTED, forger.record(victim, **theirs), attempt=99)
    forger.redis.zadd(LEASES, {other: 1.0, INVENTED: 1.0})
    queue = JobQueue(forger.redis, forger.api.store.mac_of)
    Endings(queue, forger.api.store, COMPUTATIONS).reaped(queue.reap([], judge_leases=True))
    assert not forger.redis.zscore(LEASES, other)
    assert forger.owner.get(f"/v1/jobs/{victim}/result").status_code == 200
    assert forger.is_there(array_id)


def test_no_answer_is_deleted_by_an_attempt_that_redis_tells(forger: Forger) -> None:
    victim = forger.answered(forger.owner)
    forger.redis.hset(job_key(victim), "attempt", 99)
    assert forger.worker.delete(f"/v1/worker/results/{victim}.1").json()["code"] == "result-committed"
    forger.redis.hset(job_key(victim), mapping={"attempt": 1, "result": "../../secret"})
    assert forger.owner.get(f"/v1/jobs/{victim}/result").json()["code"] == "result-gone"
    forger.redis.hset(job_key(victim), "result", f"{victim}.1")
    assert forger.owner.get(f"/v1/jobs/{victim}/result").status_code == 200


@pytest.mark.parametrize("claim", [None, "0 of-an-earlier-attempt", "1 ", "1 é", b"1 \xff"])
def test_without_the_claim_of_the_attempt_nothing_is_opened(forger: Forger, claim: str | bytes | None) -> None:
    job_id = submitted(forger.owner)
    forger.write(job_id, forger.record(job_id))
    path = f"/v1/worker/inputs/{job_id}.1/values"
    assert forger.worker.get(path, headers={CLAIM: TOKEN}).status_code == 200  # the claim token of its own attempt
    forger.redis.hdel(job_key(job_id), "claim")
    if claim is not None:
        forger.redis.hset(job_key(job_id), "claim", claim)
    for headers in ({}, {CLAIM: TOKEN}, {CLAIM: "é".encode()}):
        answer = forger.worker.get(path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "stale-attempt")


@pytest.mark.parametrize("end", ["cancel", "erase"])
@pytest.mark.parametrize("result_ttl", ["1", "-99999", "nothing"])
def test_what_the_api_ends_stays_ended_whatever_the_record_says(forger: Forger, end: str, result_ttl: str) -> None:
    job_id = submitted(forger.owner)
    forger.redis.hset(job_key(job_id), "result_ttl", result_ttl)
    if end == "cancel":
        forger.owner.post(f"/v1/jobs/{job_id}/cancel")
    else:
        forger.owner.delete(f"/v1/jobs/{job_id}")
    assert CLOSED_SECONDS - 600 < forger.redis.ttl(f"{CLOSED}{job_id}") <= CLOSED_SECONDS


def test_an_erased_job_is_still_known_to_its_owner(forger: Forger) -> None:
    job_id = forger.answered(forger.owner)
    for _ in range(2):
        assert forger.owner.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert forger.owner.get(f"/v1/jobs/{job_id}").json()["erased"]
