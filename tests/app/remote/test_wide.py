"""One job computed by workers with the store and workers of other hosts: its bytes are those of one process."""

import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests.app.remote.test_remote import Host, at_hand, document, hosted, open_at, send
from tests.claims import finish
from tests.waiting import wait_until
from tests.workers.conftest import Desk
from tests.workers.operations import WIDE
from warpdesk.models import State
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.queue.keys import job_key
from warpdesk_server.workers.queue.protocol import CLAIM, Stopped, Succeeded
from warpdesk_server.workers.queue.records import Batch, Claim, Held
from warpdesk_server.workers.queue.reports import WorkerReport
from warpdesk_server.workers.store.protocol import result_name
from warpdesk_server.workers.store.remote.store import RemoteStore

WIDTH = 4
PIECES = {"operation": "pieces", "params": {}, "inputs": {"values": {"data": [0.0, 1.0, 2.0, 3.0]}}, "width": WIDTH}


@pytest.fixture
def host(redis_url: str, tmp_path: Path) -> Iterator[Host]:
    with hosted(redis_url, tmp_path, WIDE) as made:
        yield made


def claimed(host: Host, worker: str = "lead") -> Held:
    """What a worker finds: a job, or a shard of one."""
    batch = host.api.queue.claim(Claim(worker))
    assert batch is not None
    return batch.jobs[0]


def next_of(host: Host, job: Held) -> Held:
    found = host.api.queue.claim_shard(Claim("lead"), job, 1e6)
    assert isinstance(found, Batch)
    return found.jobs[0]


def compute(store: RemoteStore, held: Held) -> Any:
    """What the child of a worker on another host answers."""
    name = result_name(held.id, held.attempt)
    attached, tokens = {held.id: held.attached}, {name: held.token}
    found = without_gpu("not needed")
    (outcome,) = execute.run([(held.request, held.attempt)], store, found, WIDE, attached=attached, tokens=tokens)
    return outcome


def test_the_arrays_of_a_shard_are_sent_once_the_api_is_back(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.submit(**PIECES)
    job = claimed(host)
    shard = next_of(host, job)
    with open_at(host) as store, at_hand(store, shard), ThreadPoolExecutor(1) as threads:
        host.link.down()
        computing = threads.submit(compute, store, shard)
        wait_until(lambda: "trying on" in caplog.text or computing.done())
        host.link.up = True
        assert isinstance(computing.result(60), Succeeded)
    assert host.api.store.checkpointed() == [job.id]


def test_arrays_of_a_shard_that_another_worker_took_over_are_not_taken(host: Host) -> None:
    host.submit(**PIECES)
    job = claimed(host)
    shard = next_of(host, job)
    with open_at(host) as store, at_hand(store, shard):
        finish(host.api.queue, shard, how="returned", reason="x")
        assert next_of(host, job).request.shard == shard.request.shard
        outcome = compute(store, shard)
    assert isinstance(outcome, Stopped)
    assert finish(host.api.queue, shard, how="returned", reason="x") == "stale"
    assert host.api.store.checkpointed() == []


def test_the_claim_of_a_shard_opens_its_job_and_its_own_file_alone(host: Host) -> None:
    host.submit(**PIECES)
    job = claimed(host)
    host.submit(**{**PIECES, "inputs": {"values": {"data": [5.0, 6.0, 7.0, 8.0]}}})
    other = claimed(host, "another")
    own, shard = next_of(host, job), claimed(host, "helper")
    number, headers = shard.request.shard, {CLAIM: shard.token}
    attempt = result_name(shard.request.id, shard.attempt)

    def put(name: str, of: str = attempt) -> tuple[int, str]:
        answer = host.worker.put(f"/v1/worker/checkpoints/{of}/{name}", content=b"arrays", headers=headers)
        return answer.status_code, answer.json()["code"] if answer.content else ""

    assert put(f"{number}.1") == (204, "")
    for name in (f"{own.request.shard}.1", f"{number}.2", f"0{number}.1", "..%2f..%2fx", "9.1"):
        assert put(name)[0] in (404, 422), name
    for of in (
        result_name(job.id, job.attempt),
        result_name(other.id, other.attempt),
        result_name(own.request.id, own.attempt),
        f"{other.id}:{number}.1",
        f"{job.id}:{number}:1.1",
        f"../{job.id}:{number}.1",
    ):
        assert put(f"{number}.1", of)[0] in (404, 409), of
        for path in (f"inputs/{of}/values", f"checkpoints/{of}/{number}.1"):
            assert host.worker.get(f"/v1/worker/{path}", headers=headers).status_code in (404, 409), path
        assert host.worker.delete(f"/v1/worker/results/{of}", headers=headers).status_code in (404, 409), of
    assert send(host, shard, document(shard)).json()["refused"][attempt]["code"] == "malformed-result"
    result = {
        "operation": "pieces",
        "outputs": {"doubled": document(shard)["outputs"]["scaled"] | {"file": "doubled.npy"}},
    }
    answer = send(host, shard, document(shard, **result))
    assert answer.json()["refused"][attempt]["code"] == "malformed-result", "a shard has no result"
    assert host.spool() == []
    host.api.queue.cancel(job.id)
    assert put(f"{number}.1") == (409, "stale-attempt")


# Real workers.

BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "rsi": ({"operation": "rsi", "params": {"period": 14}, "inputs": {"prices": "prices"}}, "rsi"),
    "matmul": ({"operation": "matmul", "params": {"algorithm": "kernel"}, "inputs": {"a": "a", "b": "b"}}, "product"),
}


@dataclass
class Pair:
    """A worker with the store, and one of another host."""

    host: Host
    desk: Desk

    def submit(self, name: str, arrays: Mapping[str, str], width: int) -> str:
        body, _ = BODIES[name]
        inputs = {each: {"array": arrays[place]} for each, place in body["inputs"].items()}
        return self.host.submit(**{**body, "inputs": inputs, "width": width})

    def bytes_of(self, job_id: str, name: str) -> bytes:
        record = self.desk.wait(job_id)
        assert record.state is State.SUCCEEDED, (record, self.desk.log()[-3000:])
        assert record.result is not None
        assert (record.attempt, record.strikes) == (1, 0), self.desk.log()[-3000:]
        return (self.desk.store.result(record.result) / f"{BODIES[name][1]}.npy").read_bytes()

    def keep_busy(self, place: Path) -> tuple[str, str]:
        """Have a worker compute until a file is gone: its name, and the job."""
        place.mkdir()
        (place / "hold.0").touch()
        inputs = {"values": {"data": [0.0]}}
        job_id = self.host.submit(operation="pieces", params={"place": str(place)}, inputs=inputs)
        self.desk.until(lambda: list(place.glob("begun.*")), "nobody computes")
        return str(self.field(job_key(job_id), "worker")), job_id

    def together(self, name: str, arrays: Mapping[str, str], lead: WorkerReport, helper: WorkerReport) -> str:
        """A job of which the lead computes the first shard, and the helper all others."""
        assert lead.child_pid is not None
        with TemporaryDirectory() as home:
            places = [Path(home) / "one", Path(home) / "other"]
            busy = {worker: (job, place) for place in places for worker, job in [self.keep_busy(place)]}
            job_id, place = busy[lead.name]
            (place / "hold.0").unlink()
            self.desk.wait(job_id)
            os.kill(lead.child_pid, signal.SIGSTOP)
            try:
                job_id = self.submit(name, arrays, WIDTH)
                self.desk.until(lambda: self.field(f"{job_key(job_id)}:0", "worker") == lead.name, "nobody leads it")
                (busy[helper.name][1] / "hold.0").unlink()
                done = str(WIDTH - 1)
                self.desk.until(lambda: self.field(job_key(job_id), "shards_done") == done, "nobody helps")
            finally:
                os.kill(lead.child_pid, signal.SIGCONT)
        return job_id

    def field(self, key: str, name: str) -> str | None:
        value = self.desk.queue._redis.hget(key, name)
        return None if value is None else value.decode()


@pytest.fixture
def pair(host: Host, tmp_path: Path) -> Iterator[Pair]:
    desk = Desk(host.api.redis_url, tmp_path / "service", host.api.queue, host.api.store)
    yield Pair(host, desk)
    desk.close()


def test_workers_of_two_hosts_compute_the_bytes_of_one_process_whoever_leads(pair: Pair, tmp_path: Path) -> None:
    host, desk = pair.host, pair.desk
    common = {"WARPDESK_OPERATIONS": "tests.workers.operations:WIDE", "WARPDESK_TAKES": "all"}
    with_store = desk.start_worker(**common)
    settings = host.settings()
    of_another_host = desk.start_worker(
        **common,
        WARPDESK_HOME=str(tmp_path / "host"),
        WARPDESK_API_URL=str(settings.api_url),
        WARPDESK_API_KEY=host.token,
    )
    assert with_store is not None
    assert of_another_host is not None
    random = np.random.default_rng(1)
    arrays = {
        "prices": host.upload(100 + random.normal(size=(40, 300)).cumsum(axis=1)),
        "a": host.upload(random.normal(size=(1024, 64))),
        "b": host.upload(random.normal(size=(64, 256))),
    }
    for name in BODIES:
        alone = pair.bytes_of(pair.submit(name, arrays, 1), name)
        for lead, helper in ((with_store, of_another_host), (of_another_host, with_store)):
            job_id = pair.together(name, arrays, lead, helper)
            assert pair.bytes_of(job_id, name) == alone, (name, lead.name)
    desk.until(lambda: not any(":" in path for path in host.spool()), "results of shards are left")
