"""A worker on another host, which reaches the store through the API, and what its key may do."""

import errno
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import COMPUTATIONS, WITH_TASKS, compute
from tests.app.conftest import SCALE, Live, connected, live
from tests.app.http.test_bodies import answer as answered
from tests.claims import finish, succeeded, take
from tests.conftest import ROOT
from tests.link import Link
from tests.waiting import wait_until
from tests.workers.operations import OPERATIONS
from tests.workers.queue.snapshot import Snapshot
from tests.workers.stepping import CHAIN, PACK
from tests.workers.stepping.task import model
from warpdesk.models import ChargeRef, State
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.kit.limits import DOCUMENTS, INPUTS_AT_ONCE
from warpdesk_server.app.remote.attempts import is_unwanted
from warpdesk_server.app.remote.endpoints import RESULTS
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.workers.child import codec, execute, tasks
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.pipe import Attempt, Stepped, receive
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.keys import job_key
from warpdesk_server.workers.queue.protocol import CLAIM, Failed, Provenance, Succeeded, WantedInputs, digest_of_claim
from warpdesk_server.workers.queue.records import Claim, Held
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.choice import open_store
from warpdesk_server.workers.store.protocol import result_name
from warpdesk_server.workers.store.remote.store import RemoteStore
from warpdesk_server.workers.store.spool import SpoolStore

GONE = "the array was erased, or its time was over"


@dataclass
class Host:
    """A service with a client of its owner, and a worker of another host."""

    api: Live
    owner: httpx.Client
    link: Link
    token: str
    home: Path
    worker: httpx.Client
    _ttls: Iterator[int] = field(default_factory=lambda: count(1000))

    def store(self, **settings: Any) -> RemoteStore:
        store = open_store(self.settings(**settings))
        assert isinstance(store, RemoteStore)
        return store

    def settings(self, **settings: Any) -> WorkerSettings:
        defaults = {"home": self.home, "api_url": f"http://127.0.0.1:{self.link.port}", "api_key": self.token}
        return WorkerSettings(**{**defaults, "operations": "tests.app.computations:COMPUTATIONS", **settings})

    def submit(self, operation: str = "scale", **body: Any) -> str:
        # Each job has another result_ttl_s, so that no two are identical and computed once.
        request = {**SCALE, "operation": operation, "result_ttl_s": float(next(self._ttls)), **body}
        answer = self.owner.post("/v1/jobs", json=request)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def claim(self, **body: Any) -> Held:
        return take(self.api.queue, self.submit(**body))

    def upload(self, array: Any) -> str:
        array_id: str = self.owner.put("/v1/arrays", content=npy(array), headers=NPY).json()["id"]
        return array_id

    def total(self, job: Held) -> float:
        """The output `total` of a job that is done."""
        total: float = self.owner.get(f"/v1/jobs/{job.id}/result").json()["outputs"]["total"]
        return total

    def here(self) -> list[Path]:
        """The files that the worker's host keeps."""
        return [path for path in self.home.rglob("*") if path.is_file()]

    def spool(self) -> list[str]:
        """Results in the service's store, and uploads to it that have not ended."""
        root = self.api.settings.store_directory
        return sorted(path.name for folder in ("results", "uploads") for path in (root / folder).iterdir())


@pytest.fixture
def host(redis_url: str, tmp_path: Path) -> Iterator[Host]:
    with hosted(redis_url, tmp_path, COMPUTATIONS) as made:
        yield made


@contextmanager
def hosted(redis_url: str, tmp_path: Path, offered: Mapping[str, Computation]) -> Iterator[Host]:
    home = tmp_path / "service"
    owner, worker = create_key(home, "owner", ["submit", "read", "cancel"]), create_key(home, "host", ["worker"])
    with live(home, redis_url, offered, max_result_numbers=10, max_job_bytes=50_000_000) as api:
        port = httpx.URL(api.url).port
        assert port is not None

        def client(token: str) -> httpx.Client:
            return httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {token}"}, timeout=30)

        with client(owner) as mine, client(worker) as theirs, Link("127.0.0.1", port) as link:
            yield Host(api, mine, link, worker, tmp_path / "host", theirs)


@contextmanager
def open_at(host: Host, **settings: Any) -> Iterator[RemoteStore]:
    store = host.store(**settings)
    try:
        yield store
    finally:
        store.close()


def at_hand(store: RemoteStore, *jobs: Held) -> AbstractContextManager[None]:
    tokens = {result_name(job.id, job.attempt): job.token for job in jobs}
    return store.at_hand([(job.request, job.attempt) for job in jobs], tokens)


def work(store: RemoteStore, *jobs: Held, meanwhile: Callable[[], object] = lambda: None) -> dict[str, Succeeded]:
    """Run claimed jobs as a worker does, up to the commit. `meanwhile` is called before anything is sent."""
    outcomes = {}
    with at_hand(store, *jobs):
        for job in jobs:
            operation = COMPUTATIONS[job.request.operation]
            params, arrays = codec.decode(operation, job.request, store, {})
            outputs = compute(operation.name, params, arrays, job.request.seed)
            directory = store.new_result(job.request.id, job.attempt)
            codec.encode(operation, job.request, outputs, directory, store, 0.0)
            provenance = Provenance(backend="cpu", device="elsewhere", attempt=job.attempt)
            outcomes[directory.name] = Succeeded(result=directory.name, provenance=provenance)
    meanwhile()
    unkept = store.finish_results(list(outcomes))
    assert {name: error for name, error in unkept.items() if error.errno != errno.ESTALE} == {}
    return outcomes


def test_jobs_run_on_another_host_as_if_it_had_the_store(host: Host) -> None:
    values = np.arange(40.0)
    array_id = host.upload(values)
    jobs = [host.claim(inputs={"values": {"array": array_id}}, params={"factor": factor}) for factor in (1.0, 2.0, 3.0)]
    with open_at(host) as store:
        for job, outcome in zip(jobs, work(store, *jobs).values(), strict=True):
            assert finish(host.api.queue, job, outcome) == "done"
    for factor, job in enumerate(jobs, 1):
        result = host.owner.get(f"/v1/jobs/{job.id}/result").json()
        assert result["outputs"]["total"] == factor * values.sum()
        scaled = host.owner.get(f"/v1/jobs/{job.id}/result/scaled", headers={"Accept": "application/x-npy"}).content
        assert scaled == npy(values * factor)
        assert result["outputs"]["scaled"]["array"] == host.upload(values * factor)  # the id of the same content
    assert host.here() == []
    expires = [json.loads((host.api.store.result(result_name(job.id, 1)) / "result.json").read_text()) for job in jobs]
    assert all(document["expires_at"] > 1e9 for document in expires)  # by the service's clock


def test_an_input_is_fetched_once_for_several_jobs_and_kept_within_the_bounds(host: Host) -> None:
    first, second, third = (host.upload(np.arange(float(1000 + number))) for number in range(3))
    with open_at(host, cache_bytes=17_000) as store:

        def run(array_id: str) -> float:
            job = host.claim(inputs={"values": {"array": array_id}})
            with at_hand(store, job):
                return float(np.load(store.path(job.request.owner, array_id))[-1])

        assert run(first) == 999.0
        [kept] = [file for file in host.here() if file.suffix == ".npy"]
        kept.write_bytes(npy(np.arange(1000.0) + 7))  # a content that shows whether the kept file is used
        os.utime(kept, (1, 1))
        assert run(first) == 1006.0
        kept.write_bytes(npy(np.arange(10.0)))  # a truncated file
        assert run(first) == 999.0
        assert run(second) == 1000.0
        assert run(first) == 999.0  # so that the second is the oldest
        assert run(third) == 1001.0
        assert {file.stem for file in host.here()} == {array_id[7:] for array_id in (first, third)}
    assert host.here() == []  # the last store to close deletes the cache
    with open_at(host, cache_seconds=0.0) as store:
        assert run(first) == 999.0
        assert [file for file in host.here() if file.suffix == ".npy"] == []


def test_private_inputs_and_secrets_have_no_name_on_another_host(host: Host) -> None:
    job = host.claim(
        operation="hide", params={"count": 3}, inputs={"values": {"data": [1.0]}, "seeds": {"data": [2.0]}}
    )
    with open_at(host) as store, at_hand(store, job):
        for name, expected in (("values", 1.0), ("seeds", 2.0)):
            array_id = job.request.inputs[name]
            assert np.load(store.path(job.request.owner, array_id)).tolist() == [expected]
        assert host.here() == []


def test_an_input_that_is_gone_fails_its_job_alone(host: Host) -> None:
    there, gone = host.claim(), host.claim(params={"factor": 3.0}, inputs={"values": {"data": [5.0]}})
    host.api.store.delete(gone.request.owner, gone.request.inputs["values"])
    with open_at(host) as store, at_hand(store, there, gone):
        codec.decode(COMPUTATIONS["scale"], there.request, store, {})
        with pytest.raises(ValueError, match=GONE):
            codec.decode(COMPUTATIONS["scale"], gone.request, store, {})


def test_a_large_input_comes_beside_small_ones(host: Host) -> None:
    large = np.random.default_rng(2).random(1_200_000)  # larger than a response with several inputs may be
    arrays = [np.arange(3.0), large, np.array([[1.0, np.nan]])]
    jobs = [host.claim(inputs={"values": {"array": host.upload(array)}}) for array in arrays]
    with open_at(host) as store, at_hand(store, *jobs):
        for job, array in zip(jobs, arrays, strict=True):
            found = store.find(job.request.owner, job.request.inputs["values"])
            assert found is not None
            assert (found.info.shape, found.info.has_nan) == (array.shape, array.ndim == 2)
            np.testing.assert_array_equal(np.load(store.path(job.request.owner, found.id)), array)


def test_a_download_goes_on_where_the_connection_broke(host: Host) -> None:
    values = np.random.default_rng(1).random(1_000_000)
    job = host.claim(inputs={"values": {"array": host.upload(values)}})
    host.link.break_after = 5_000_000
    with open_at(host) as store, at_hand(store, job):
        np.testing.assert_array_equal(np.load(store.path(job.request.owner, job.request.inputs["values"])), values)
    assert host.link.broken == 1


def test_a_result_is_delivered_once_the_api_is_back(host: Host) -> None:
    job = host.claim()
    with open_at(host) as store, ThreadPoolExecutor(1) as threads:
        working = threads.submit(work, store, job, meanwhile=host.link.down)
        wait_until(lambda: not host.link.up)
        assert not working.done()
        host.link.up = True
        (outcome,) = working.result(60).values()
    assert finish(host.api.queue, job, outcome) == "done"
    assert host.total(job) == 8.0


def test_a_result_whose_answer_was_lost_is_sent_again(host: Host) -> None:
    job = host.claim()

    def lose() -> None:
        host.link.break_after = 10

    with open_at(host) as store:
        (outcome,) = work(store, job, meanwhile=lose).values()
    assert finish(host.api.queue, job, outcome) == "done"
    assert host.link.broken == 1
    assert host.total(job) == 8.0
    assert host.spool() == [result_name(job.id, 1)]


def test_a_stale_attempts_result_is_not_taken_and_that_is_no_failure(host: Host) -> None:
    jobs = stale, current = host.claim(), host.claim()
    with open_at(host) as store:
        outcomes = work(store, *jobs, meanwhile=lambda: host.api.queue.cancel(stale.id)).values()
    assert [finish(host.api.queue, job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)] == [
        "stale",
        "done",
    ]
    assert host.spool() == [result_name(current.id, 1)]
    assert host.here() == []


def test_of_what_was_charged_a_result_that_nobody_kept_is_no_answer(host: Host) -> None:
    job = host.claim(inputs={"values": {"array": host.upload(np.arange(4.0))}})
    request = job.request.model_copy(update={"operation": "double", "params": {}})
    outcomes: list[object] = []
    with open_at(host) as store, at_hand(store, job):
        host.api.queue.cancel(job.id)
        for keys in ({}, {job.id: bytes(32)}):
            outcomes += execute.run([(request, 1)], store, without_gpu("not needed"), OPERATIONS, keys=keys)
    assert [type(outcome) for outcome in outcomes] == [Succeeded, Failed]
    assert host.spool() == []


def test_an_input_that_is_not_what_was_charged_for_is_given_to_no_worker(host: Host) -> None:
    array_id = host.upload(np.arange(4.0))
    plain = host.claim(inputs={"values": {"array": array_id}})
    paid = ChargeRef(id="charge_1", budget="budget_1", head="0" * 64)
    signed: JobQueue = host.api.app.state.services.queue.jobs
    signed.enqueue(plain.request.model_copy(update={"id": "job_" + "0" * 32, "charge": paid}))
    charged = take(host.api.queue, "job_" + "0" * 32)

    def given(job: Held) -> tuple[int, bool]:
        name = f"{job.id}.{job.attempt}"
        alone = host.worker.get(f"/v1/worker/inputs/{name}/values", headers={CLAIM: job.token}).status_code
        wanted = {"inputs": [[name, "values"]], "claims": {name: job.token}}
        together = host.worker.post("/v1/worker/inputs", json=wanted).content
        head = json.loads(together[4 : 4 + int.from_bytes(together[:4], "big")])
        return alone, head["arrays"] != [None]

    assert given(plain) == given(charged) == (200, True)
    file = host.api.store.path(plain.request.owner, array_id)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert given(charged) == (404, False)


def test_a_result_that_did_not_commit_is_deleted_and_an_answer_is_not(host: Host) -> None:
    lost, committed = host.claim(), host.claim()
    with open_at(host) as store:
        outcomes = work(store, lost, committed)
        assert finish(host.api.queue, committed, outcomes[result_name(committed.id, 1)]) == "done"
        for job in (lost, committed):
            store.delete_result(result_name(job.id, 1), job.token)
        wait_until(lambda: host.spool() == [result_name(committed.id, 1)])
    assert host.worker.delete(f"/v1/worker/results/{result_name(committed.id, 1)}").json()["code"] == "result-committed"
    assert host.total(committed) == 8.0


def test_secrets_are_erased_through_the_api_unless_a_live_job_reads_them(host: Host) -> None:
    def secret(seed: float) -> Held:
        return host.claim(
            operation="hide", params={"count": 1}, inputs={"values": {"data": [1.0]}, "seeds": {"array": seeds[seed]}}
        )

    seeds = {seed: host.upload([seed]) for seed in (11.0, 12.0)}
    done, also, live_one = secret(11.0), secret(12.0), secret(12.0)
    host.link.down()
    with open_at(host) as store:
        for job in (done, also):
            host.api.queue.cancel(job.id)  # (nobody listens for it here: the API erases them by itself too)
        for job in (done, also, live_one):
            store.erase_secrets(job.request, [job.request.inputs["seeds"]])
        host.link.up = True
        owner = done.request.owner
        wait_until(lambda: host.api.store.find(owner, seeds[11.0]) is None)
    assert host.api.store.find(owner, seeds[12.0]) is not None


def test_a_worker_takes_no_job_before_the_api_has_signed_those_of_an_earlier_release(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(host) as store, monkeypatch.context() as patch:
        patch.setattr(SpoolStore, "records_signed", property(lambda _: False))
        wait_until(lambda: "503 queue-unavailable: Jobs that an earlier release queued" in (store.trouble() or ""))
        patch.undo()
        wait_until(lambda: store.trouble() is None)


def test_a_worker_without_the_api_says_so_and_takes_no_job(host: Host) -> None:
    with open_at(host) as store:
        wait_until(lambda: store.trouble() is None)
        host.link.down()
        wait_until(lambda: "does not answer" in (store.trouble() or ""))
        host.link.up = True
        wait_until(lambda: store.trouble() is None)
    with open_at(host, api_key="wd_000000000000_" + "x" * 43) as store:
        wait_until(lambda: "401 unauthorized" in (store.trouble() or ""))


def test_what_a_killed_process_left_is_gone_with_the_next(host: Host) -> None:
    program = (
        "import os, signal\n"
        "from warpdesk_server.workers.settings import WorkerSettings\n"
        "from warpdesk_server.workers.store.choice import open_store\n"
        "store = open_store(WorkerSettings())\n"
        "(store.new_result('job_1', 1) / 'result.json').write_text('{}')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    settings = host.settings()
    variables = {
        "HOME": settings.home,
        "API_URL": settings.api_url,
        "API_KEY": host.token,
        "OPERATIONS": settings.operations,
    }
    environment = {**os.environ, **{f"WARPDESK_{name}": str(value) for name, value in variables.items()}}
    with open_at(host) as other:
        own = other.new_result("job_2", 1)
        (own / "result.json").write_text("{}")
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=False)
        assert len(host.here()) == 2
        with open_at(host):
            assert host.here() == [own / "result.json"]


# What a worker's key is not for.


def test_a_worker_key_opens_nothing_else_and_no_other_key_opens_this(host: Host, tmp_path: Path) -> None:
    refused = [
        host.worker.get("/v1/jobs"),
        host.worker.put("/v1/arrays", content=npy([1.0]), headers=NPY),
        host.worker.post("/v1/jobs", json=SCALE),
        host.worker.get(f"/v1/arrays/{host.upload([1.0])}"),
        host.worker.get("/v1/dead-letters"),
    ]
    admin = create_key(host.api.settings.home, "root", ["admin"])
    others = f"Bearer {admin}", host.owner.headers["Authorization"]
    refused += [host.worker.get("/v1/worker", headers={"Authorization": other}) for other in others]
    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(403, "missing-scope")] * 7
    with pytest.raises(ValueError, match="has the scope worker alone"):
        create_key(tmp_path, "both", ["worker", "read"])


def test_without_keys_there_are_no_workers_of_other_hosts(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api:
        assert api.http.get("/v1/worker").json()["code"] == "missing-scope"


def test_only_inputs_of_the_attempt_that_runs_are_read(host: Host) -> None:
    waiting = host.submit()
    running, done = host.claim(), host.claim()
    host.api.queue.cancel(done.id)

    def ask(attempt: str, name: str = "values", token: str = running.token) -> tuple[int, str]:
        answer = host.worker.get(f"/v1/worker/inputs/{attempt}/{name}", headers={CLAIM: token})
        return answer.status_code, "" if answer.is_success else answer.json()["code"]

    assert ask(f"{running.id}.1") == (200, "")
    assert ask(f"{running.id}.1", "weights") == (404, "unknown-array")
    for attempt in (f"{running.id}.2", f"{running.id}.0", f"{waiting}.0", f"{done.id}.1", "job_x.1", "..", "job_x"):
        assert ask(attempt) in ((409, "stale-attempt"), (404, "not-found"))


@dataclass
class Tasks:
    """A service that offers tasks, and what a worker's child on another host does with them."""

    host: Host

    def submit(self, operation: str = "chain", **params: Any) -> str:
        body = {"operation": operation, "params": params, **({"seed": 7} if operation == "chain" else {})}
        answer = self.host.owner.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def claim(self) -> Held:
        batch = self.host.api.queue.claim(Claim("a worker of tasks", takes="tasks"))
        assert batch is not None
        return batch.jobs[0]

    def run(self, job: Held, checkpoint: str = "") -> tuple[Any, list[Stepped]]:
        """The outcome of an attempt, and what its child told of its steps."""
        parent, child = Pipe()
        attempt = Attempt(request=job.request, attempt=job.attempt, claim=job.token, checkpoint=checkpoint)
        with open_at(self.host) as store, at_hand(store, job), parent, child:
            outcome = tasks.run(attempt, {"chain": CHAIN, "pack": PACK}, store, without_gpu("not needed"), child, 0.0)
            messages = [receive(parent) for _ in iter(parent.poll, False)]
        return outcome, [message for message in messages if isinstance(message, Stepped)]


@pytest.fixture
def far(redis_url: str, tmp_path: Path) -> Iterator[Tasks]:
    with hosted(redis_url, tmp_path, WITH_TASKS) as host:
        yield Tasks(host)


def test_a_task_on_another_host_keeps_its_checkpoints_in_the_service_and_resumes_from_them(far: Tasks) -> None:
    job_id = far.submit(steps=9, hang_at=0)
    first = far.claim()
    outcome, messages = far.run(first)
    assert outcome.kind == "succeeded"
    assert [message.checkpoint for message in messages if message.checkpoint] == [f"1.{step}" for step in range(1, 10)]
    assert far.host.api.store.checkpointed() == [job_id]
    assert far.host.here() == [], "nothing stays on the worker's host"
    kept = np.load(far.host.api.store.result(outcome.result) / "numbers.npy")
    finish(far.host.api.queue, first, how="returned")
    again = far.claim()
    outcome, messages = far.run(again, "1.9")
    assert outcome.provenance.resumed_from == 9
    assert [message.checkpoint for message in messages] == []
    assert np.array_equal(np.load(far.host.api.store.result(outcome.result) / "numbers.npy"), kept)


def test_a_damaged_checkpoint_is_passed_over_on_another_host_too(far: Tasks) -> None:
    job_id = far.submit(steps=5)
    first = far.claim()
    far.run(first)
    finish(far.host.api.queue, first, how="returned")
    file = far.host.api.settings.store_directory / "checkpoints" / job_id / "1.5"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    outcome, messages = far.run(far.claim(), "1.5")
    assert outcome.provenance.resumed_from == 4
    assert [message.step for message in messages if message.checkpoint] == [5]


def test_a_task_on_another_host_sends_its_files(far: Tasks) -> None:
    job_id = far.submit("pack", size=300_000)
    job = far.claim()
    outcome, _ = far.run(job)
    assert finish(far.host.api.queue, job, outcome) == "done"
    assert far.host.owner.get(f"/v1/jobs/{job_id}/result/model").content == model(300_000)
    assert far.host.owner.get(f"/v1/jobs/{job_id}/result/notes").content == b""
    assert far.host.here() == [], "nothing stays on the worker's host"


def test_files_of_another_host_are_those_that_the_task_declares(far: Tasks) -> None:
    """No worker chooses where its service writes, what a download is called, or how much it is."""
    job_id = far.submit("pack")
    job = far.claim()
    good = {"file": "model-model.bin", "name": "model.bin", "media_type": "application/octet-stream", "bytes": 5}
    empty = {"file": "notes-notes.html", "name": "notes.html", "media_type": "text/html", "bytes": 0}

    def answer(content: bytes = b"model", **change: Any) -> str:
        files = {"model": {**good, "sha256": hashlib.sha256(content).hexdigest(), **change}, "size": {"value": 5}}
        files["notes"] = {**empty, "sha256": hashlib.sha256().hexdigest()}
        text = {"job": job_id, "operation": "pack", "outputs": files, "expires_at": 0.0}
        head = json.dumps({"results": [{"name": f"{job_id}.1", "claim": job.token, "document": text}]}).encode()
        body = struct.pack(">I", len(head)) + head + content
        reply = far.host.worker.post("/v1/worker/results", content=body, headers={"Content-Type": RESULTS}).json()
        return str(reply.get("code") or reply["refused"].get(f"{job_id}.1", {}).get("detail", ""))

    assert answer(file="../../model.bin") == "A file is not named after its output"
    assert answer(file="result.json") == "A file is not named after its output"
    assert answer(name="other.bin") == "A file is not named after its output"
    assert "has files of the types" in answer(media_type="text/html")
    assert answer(name='x"; y') == answer(bytes=-1) == answer(media_type="text/html\r\n") == "malformed-result"
    assert answer(sha256="0" * 64) == "malformed-result"
    assert answer(bytes=6) == answer(bytes=4) == "malformed-result", "shorter or longer than announced"
    size = (1 << 20) + 1
    assert answer(bytes(size), bytes=size) == f"Its arrays and files have {size} bytes, and the task declares {1 << 20}"
    assert far.host.spool() == []
    assert answer() == ""
    assert finish(far.host.api.queue, job, succeeded(job)) == "done"
    assert far.host.owner.get(f"/v1/jobs/{job_id}/result/model").content == b"model"


def test_a_checkpoint_that_cannot_be_sent_is_left_out_and_the_task_goes_on(far: Tasks) -> None:
    job_id = far.submit(steps=3)
    job = far.claim()
    far.host.api.queue.cancel(job_id)  # as a network that is away, to a checkpoint: the API does not take it
    outcome, messages = far.run(job)
    assert [message.checkpoint for message in messages if message.checkpoint] == []
    assert (messages[-1].step, outcome.kind) == (3, "failed"), "it went on to the end, where its result was not taken"
    assert far.host.api.store.checkpointed() == []


def test_checkpoints_are_of_the_attempt_that_runs_and_no_larger_than_the_task_declares(far: Tasks) -> None:
    job_id = far.submit(steps=3)
    job = far.claim()
    path = f"/v1/worker/checkpoints/{result_name(job_id, 1)}"

    def put(name: str, content: bytes = b"state", token: str = job.token) -> tuple[int, str]:
        answer = far.host.worker.put(f"{path}/{name}", content=content, headers={CLAIM: token})
        return answer.status_code, answer.json()["code"] if answer.content else ""

    assert put("1.1") == (204, "")
    assert far.host.worker.get(f"{path}/1.1", headers={CLAIM: job.token}).content == b"state"
    assert far.host.worker.get(f"{path}/1.7", headers={CLAIM: job.token}).content == b"state", "the one before it"
    assert put("2.1")[1] == put("1.x")[1] == put("1.1.1")[1] == "invalid-request"
    assert put("1.2", token="0" * 32)[1] == "stale-attempt"
    assert put("1.2", bytes((1 << 20) + 1)) == (413, "body-too-large")
    assert far.host.worker.get(f"{path}/1.1").json()["code"] == "stale-attempt"
    assert far.host.owner.get(f"{path}/1.1", headers={CLAIM: job.token}).status_code == 403
    far.host.api.queue.cancel(job_id)
    assert put("1.3")[1] == "stale-attempt"


def test_what_a_worker_has_claimed_no_other_key_reads_writes_or_deletes(host: Host) -> None:
    job = host.claim()
    name = result_name(job.id, job.attempt)
    forger = replace(job, token="0" * 32)
    with redis.Redis.from_url(host.api.redis_url) as connection:
        redis_content = str(Snapshot(connection).keys)  # what anyone who reads Redis sees
    assert (job.token in redis_content, digest_of_claim(job.token) in redis_content) == (False, True)
    path = f"/v1/worker/inputs/{name}/values"
    request = {"inputs": [[name, "values"]], "claims": {name: forger.token}}
    assert host.worker.get(path).json()["code"] == "stale-attempt"
    assert host.worker.get(path, headers={CLAIM: forger.token}).json()["code"] == "stale-attempt"
    assert b'"arrays":[null]' in host.worker.post("/v1/worker/inputs", json=request).content
    assert send(host, forger, document(job)).json()["refused"][name]["code"] == "stale-attempt"
    assert host.spool() == []
    assert send(host, job, document(job)).json() == {"refused": {}}
    for headers in ({}, {CLAIM: forger.token}):
        deleted = host.worker.delete(f"/v1/worker/results/{name}", headers=headers)
        assert deleted.json()["code"] == "result-committed"
    assert host.api.queue.renew([forger]).lost == [forger]
    assert finish(host.api.queue, forger, succeeded(job)) == "stale"
    assert finish(host.api.queue, job, succeeded(job)) == "done"
    assert host.total(job) == 8.0


def test_an_input_that_the_service_refuses_is_told_as_refused(host: Host) -> None:
    job = host.claim()
    with redis.Redis.from_url(host.api.redis_url) as connection:
        connection.hdel(job_key(job.id), "claim")
    with open_at(host) as store, at_hand(store, job), pytest.raises(InvalidRequest, match="was claimed by another"):
        codec.decode(COMPUTATIONS["scale"], job.request, store, {})


@pytest.mark.parametrize(
    ("state", "attempt", "unwanted"),
    [
        (State.RUNNING, 1, False),  # past its deadline: the result may have been acknowledged to another request
        (State.SUCCEEDED, 1, False),
        (State.CANCELED, 1, True),
        (State.RUNNING, 2, True),
        (State.QUEUED, 0, False),  # Redis has lost its data
    ],
)
def test_what_came_too_late_is_deleted_only_where_nobody_can_commit_it(
    host: Host, state: State, attempt: int, unwanted: bool
) -> None:
    record = host.api.queue.get(host.submit())
    assert record is not None
    assert is_unwanted(f"{record.request.id}.1", replace(record, state=state, attempt=attempt)) is unwanted


def document(held: Held, **changes: Any) -> dict[str, Any]:
    array = {"file": "scaled.npy", "dtype": "float64", "shape": [3], "id": "", "has_nan": True, "has_inf": False}
    outputs = {"scaled": {**array, **changes.pop("scaled", {})}, "total": {"value": 8.0}}
    return {"job": held.id, "operation": "scale", "outputs": outputs, "expires_at": 1.0, **changes}


LARGE = npy(np.zeros(1 << 20))  # so large that a part is written before the end arrives


def large(held: Held) -> dict[str, Any]:
    return document(held, scaled={"shape": [1 << 20]})


def send(
    host: Host, job: Held, result_document: dict[str, Any], content: bytes = npy(np.arange(3.0))
) -> httpx.Response:
    return post(host, manifest(job, result_document) + content)


def manifest(job: Held, result_document: dict[str, Any]) -> bytes:
    result = {"name": result_name(job.id, job.attempt), "claim": job.token, "document": result_document}
    text = json.dumps({"results": [result]}).encode()
    return struct.pack(">I", len(text)) + text


def post(host: Host, body: bytes) -> httpx.Response:
    return host.worker.post("/v1/worker/results", content=body, headers={"Content-Type": RESULTS})


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "draw"},
        {"job": "job_" + "0" * 32},
        {"outputs": {}},
        {"outputs": {"scaled": {"value": 1.0}, "total": {"value": 8.0}}},
        {"scaled": {"file": "../secret"}},
        {"scaled": {"file": "result.json"}},
    ],
    ids=["operation", "job", "outputs", "kinds", "path", "file"],
)
def test_a_document_that_does_not_fit_its_job_is_refused_alone(host: Host, changes: dict[str, Any]) -> None:
    job = host.claim()
    result_document = document(job, **changes)
    content = npy(np.arange(3.0)) if "file" in result_document["outputs"].get("scaled", {}) else b""
    answer = send(host, job, result_document, content)
    assert answer.json()["refused"][f"{job.id}.1"]["code"] == "malformed-result"
    assert host.spool() == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda job: b"\0\0", "malformed-result"),
        (lambda job: struct.pack(">I", 1 << 30), "body-too-large"),
        (lambda job: struct.pack(">I", 4) + b"null", "malformed-result"),
        (lambda job: (document(job), npy(np.arange(3.0))[:-1]), "malformed-result"),
        (lambda job: (document(job), npy(np.arange(3.0)) + b"!"), "malformed-result"),
        (lambda job: (document(job), npy(np.arange(3))), "malformed-result"),
        (lambda job: (document(job, scaled={"shape": [-3]}), b""), "malformed-result"),
        (lambda job: (document(job, scaled={"shape": [1] * 9}), b""), "malformed-result"),
        (lambda job: (document(job, scaled={"shape": [10_000_000]}), b""), "array-too-large"),
    ],
    ids=["length", "manifest length", "no manifest", "short", "long", "another dtype", "negative", "axes", "too large"],
)
def test_a_body_that_is_not_what_it_announces_is_refused_and_leaves_nothing(
    host: Host, body: Callable[[Held], Any], code: str
) -> None:
    job = host.claim()
    sent = body(job)
    answer = post(host, sent) if isinstance(sent, bytes) else send(host, job, *sent)
    assert answer.json()["code"] == code, answer.text
    assert host.spool() == []


def head_of(host: Host, path: str, length: int) -> bytes:
    return (
        f"POST /v1/worker/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {host.token}\r\n"
        f"Content-Type: {RESULTS}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def test_documents_of_results_count_before_they_are_read_and_until_the_request_ends(host: Host) -> None:
    held = host.api.app.state.services.for_workers.held
    announced = head_of(host, "results", 4 + DOCUMENTS) + struct.pack(">I", DOCUMENTS)
    with connected(host.api) as first, connected(host.api) as second:
        first.sendall(announced)
        wait_until(lambda: held() == DOCUMENTS)
        second.sendall(announced)
        status, problem = answered(second)
        host.submit()  # another caller is served meanwhile
    wait_until(lambda: held() == 0)
    assert (status, problem["code"]) == (429, "share-used-up")
    assert problem["detail"].startswith("Bytes for workers: one key may hold 50331648 at once; it holds 33554432 and")

    job = host.claim()
    body = manifest(job, large(job))
    with connected(host.api) as connection:
        connection.sendall(head_of(host, "results", len(body) + len(LARGE)) + body)  # without the array
        wait_until(lambda: held() == len(body) - 4)
    wait_until(lambda: held() == 0)


def test_pieces_of_a_result_count_while_they_wait_and_where_none_may_wait_each_is_written(host: Host) -> None:
    unwritten = host.api.app.state.services.unwritten
    job = host.claim()
    body = manifest(job, large(job)) + LARGE
    with connected(host.api) as connection:
        connection.sendall(head_of(host, "results", len(body)) + body[: 2 << 20])
        wait_until(lambda: unwritten.held() > 1 << 20)
    wait_until(lambda: unwritten.held() == 0)

    with ExitStack() as stack:
        for other in "abc":
            stack.enter_context(unwritten.take(other, unwritten.each))
        assert unwritten.held() == unwritten.whole
        assert post(host, body).json() == {"refused": {}}
    assert np.load(host.api.store.result(f"{job.id}.1") / "scaled.npy").shape == (1 << 20,)


def test_inputs_on_their_way_to_a_worker_count_until_it_has_read_them(host: Host) -> None:
    supply = host.api.app.state.services.for_workers
    job = host.claim(inputs={"values": {"array": host.upload(np.zeros(INPUTS_AT_ONCE // 8))}})
    attempt = result_name(job.id, job.attempt)
    body = WantedInputs(inputs=((attempt, "values"),), claims={attempt: job.token}).model_dump_json().encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the API cannot send most of them yet
        connection.connect((httpx.URL(host.api.url).host, httpx.URL(host.api.url).port))
        connection.sendall(head_of(host, "inputs", len(body)) + body)
        wait_until(lambda: supply.held() == INPUTS_AT_ONCE)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        assert supply.held() == INPUTS_AT_ONCE
    wait_until(lambda: supply.held() == 0)

    assert len(host.worker.post("/v1/worker/inputs", content=body).content) > INPUTS_AT_ONCE
    wait_until(lambda: supply.held() == 0)
    with supply.take(host.token.split("_")[1], supply.each):
        refused = host.worker.post("/v1/worker/inputs", content=body)
    assert (refused.status_code, refused.json()["code"]) == (429, "share-used-up")


def test_what_an_attempt_sends_again_is_dropped_and_the_first_stays(host: Host) -> None:
    job = host.claim()
    for factor in (1.0, 2.0):
        assert send(host, job, document(job), npy(np.arange(3.0) * factor)).json() == {"refused": {}}
    assert np.load(host.api.store.result(f"{job.id}.1") / "scaled.npy").tolist() == [0.0, 1.0, 2.0]
    assert host.spool() == [f"{job.id}.1"]


def test_what_a_power_cut_left_of_a_result_gives_way_to_the_whole_one(host: Host) -> None:
    job = host.claim()
    send(host, job, document(job))
    left = host.api.store.result(f"{job.id}.1")
    (left / "scaled.npy").write_bytes(npy(np.zeros(3)))
    assert send(host, job, document(job)).json() == {"refused": {}}
    assert np.load(left / "scaled.npy").tolist() == [0.0, 1.0, 2.0]
    (left / "result.json").write_bytes(b"")
    assert send(host, job, document(job)).json() == {"refused": {}}
    assert host.spool() == [f"{job.id}.1"]
    assert finish(host.api.queue, job, succeeded(job)) == "done"
    assert host.total(job) == 8.0


@contextmanager
def held_open(
    host: Host, job: Held, result_document: dict[str, Any], content: bytes
) -> Iterator[Callable[[], httpx.Response]]:
    """Send a result but for its last byte. The function that is yielded sends that byte and returns the response."""
    body, sent, end = manifest(job, result_document) + content, threading.Event(), threading.Event()

    def pieces() -> Iterator[bytes]:
        yield body[:-1]
        sent.set()
        assert end.wait(60)
        yield body[-1:]

    def go_on() -> httpx.Response:
        end.set()
        return answer.result(60)

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(
            lambda: host.worker.post("/v1/worker/results", content=pieces(), headers={"Content-Type": RESULTS})
        )
        assert sent.wait(60)
        wait_until(lambda: any(file.stat().st_size for file in uploads(host)))  # the API has looked at the attempt
        try:
            yield go_on
        finally:
            end.set()


def uploads(host: Host) -> list[Path]:
    return list((host.api.settings.store_directory / "uploads").rglob("*.npy"))


def test_a_result_that_arrives_after_the_commit_neither_deletes_nor_replaces_it(host: Host) -> None:
    job = host.claim()
    name = f"{job.id}.1"
    with held_open(host, job, large(job), LARGE) as go_on:
        assert send(host, job, document(job), npy(np.arange(3.0))).json() == {"refused": {}}
        assert finish(host.api.queue, job, succeeded(job)) == "done"
        assert go_on().json()["refused"][name]["code"] == "stale-attempt"
    assert host.total(job) == 8.0
    assert np.load(host.api.store.result(name) / "scaled.npy").tolist() == [0.0, 1.0, 2.0]
    assert host.spool() == [name]


def test_a_result_that_arrives_after_a_cancel_is_deleted(host: Host) -> None:
    job = host.claim()
    with held_open(host, job, large(job), LARGE) as go_on:
        host.api.queue.cancel(job.id)
        assert go_on().json()["refused"][f"{job.id}.1"]["code"] == "stale-attempt"
    assert host.spool() == []


def test_an_answer_of_several_jobs_outlives_the_one_that_was_computed(host: Host) -> None:
    first = host.submit(result_ttl_s=77.0)
    second = host.submit(result_ttl_s=77.0)
    job = take(host.api.queue, first)
    name = f"{first}.1"
    send(host, job, document(job))
    assert finish(host.api.queue, job, succeeded(job)) == "done"
    assert host.owner.delete(f"/v1/jobs/{first}").status_code == 204
    assert host.worker.delete(f"/v1/worker/results/{name}").json()["code"] == "result-committed"
    assert host.owner.get(f"/v1/jobs/{second}/result").json()["outputs"]["total"] == 8.0
    assert host.owner.delete(f"/v1/jobs/{second}").status_code == 204
    assert host.spool() == []


def test_a_full_disk_of_the_service_is_told_as_a_full_disk(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: SpoolStore, names: Any) -> dict[str, OSError]:
        return dict.fromkeys(names, OSError(errno.ENOSPC, "No space left on device"))

    job = host.claim()
    monkeypatch.setattr(SpoolStore, "finish_results", full)
    with open_at(host) as store, pytest.raises(AssertionError, match=r"OSError.28, .*storage-full"):
        work(store, job)


def test_a_url_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="WARPDESK_API_KEY is not"):
        WorkerSettings(home=tmp_path, api_url="http://127.0.0.1:1")
