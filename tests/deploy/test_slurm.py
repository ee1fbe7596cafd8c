"""The job script of deploy/slurm, run as Slurm runs it (`fake_slurm`): a real API, a real Redis, a real worker."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.app.conftest import live
from tests.conftest import ROOT
from tests.deploy.fake_slurm import Run, Slurm, options_of, seconds
from tests.deploy.tools import tool
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from warpdesk.models import State
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.settings import Settings
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.spool import SpoolStore

SCRIPT = ROOT / "deploy" / "slurm" / "warpdesk-worker.sbatch"


def secrets(folder: Path, **texts: str) -> Path:
    """A directory of secret files that nobody else can read."""
    folder.mkdir(mode=0o700)
    for name, text in texts.items():
        file = folder / name.replace("_", "-")
        file.touch(mode=0o600)
        file.write_text(text)
    return folder


@dataclass
class Cluster:
    slurm: Slurm
    desk: Desk
    owner: httpx.Client
    home: Path  # of the user, on the cluster

    def submit(self, **body: object) -> str:
        answer = self.owner.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def ended(self, job_id: str) -> tuple[State, int]:
        record = self.desk.queue.get(job_id)
        assert record is not None
        return record.state, record.attempt


@pytest.fixture
def cluster(tmp_path: Path, redis_url: str) -> Iterator[Cluster]:
    with ExitStack() as stack:
        home = tmp_path / "service"
        owner, key = create_key(home, "owner", ["submit", "read"]), create_key(home, "slurm", ["worker"])
        api = stack.enter_context(live(home, redis_url, OPERATIONS))
        client = stack.enter_context(
            httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {owner}"}, timeout=60)
        )
        connection = connect(redis_url)
        stack.callback(connection.close)
        user = tmp_path / "user"
        (user / "node").mkdir(parents=True)
        environment = {
            "HOME": str(user),
            "TMPDIR": str(user / "node"),
            "PYTHONPATH": str(ROOT),
            "WARPDESK_API_URL": api.url,
            "WARPDESK_SECRETS": str(secrets(user / "secrets", redis_url=redis_url, api_key=key)),
            "WARPDESK_COMMAND": f"{sys.executable} -m warpdesk",
            "WARPDESK_OPERATIONS": "tests.workers.operations:OPERATIONS",
            "WARPDESK_DEVICE": "cpu",
            "WARPDESK_IDLE_SECONDS": "2",
            "WARPDESK_DRAIN_SECONDS": "20",
        }
        store = SpoolStore(home / "store")
        desk = Desk(redis_url, tmp_path, JobQueue(connection, store.mac_of), store)
        yield Cluster(Slurm(tmp_path / "slurm", environment), desk, client, user)


def test_a_job_is_done_by_a_worker_that_ends_when_no_work_is_left(cluster: Cluster) -> None:
    job_id = cluster.submit(operation="double", inputs={"values": {"data": [1.0, 2.0]}})
    run = cluster.slurm.run(cluster.slurm.submit("--time=5", "--signal=B:TERM@60", str(SCRIPT)))
    assert run.state == "COMPLETED", run
    assert run.output.endswith("warpdesk-worker: no work is left\n")
    assert cluster.slurm.requeued() == []
    assert cluster.owner.get(f"/v1/jobs/{job_id}/result").json()["outputs"]["total"] == 6.0
    assert list((cluster.home / "node").iterdir()) == []  # nothing stays on the node


def test_a_worker_whose_time_ends_finishes_its_job_and_comes_back_for_the_rest(cluster: Cluster) -> None:
    slurm, desk, come = cluster.slurm, cluster.desk, threading.Event()
    runs: list[Run] = []
    job = slurm.submit("--time=5", "--signal=B:TERM@60", str(SCRIPT))
    running = threading.Thread(target=lambda: runs.append(slurm.run(job, come=come)))
    with desk.gate() as gate:
        first = cluster.submit(
            operation="nap", params={"seconds": 0.0, "marker": str(desk.marker("first")), "gate": gate}
        )
        running.start()
        desk.napping(desk.marker("first"))
        second = cluster.submit(operation="double", inputs={"values": {"data": [4.0]}})
        come.set()
        desk.until(lambda: "told to stop" in slurm.log_text(), "the script does not hear Slurm")
        assert runs == []  # it drains
    running.join(60)
    assert runs[0].state == "PENDING", runs[0]
    assert slurm.requeued() == [str(job)]
    assert cluster.ended(first) == (State.SUCCEEDED, 1)
    assert cluster.ended(second) == (State.QUEUED, 0)
    again = slurm.run(job)
    assert again.output.endswith("warpdesk-worker: no work is left\n"), again
    assert slurm.requeued() == [str(job)]
    assert cluster.ended(second) == (State.SUCCEEDED, 1)


def test_a_worker_minds_the_end_by_itself_where_slurm_does_not_signal(cluster: Cluster) -> None:
    environment = {**cluster.slurm.environment, "WARPDESK_IDLE_SECONDS": "60", "WARPDESK_DRAIN_SECONDS": "20"}
    cluster.slurm.environment = environment
    run = cluster.slurm.run(cluster.slurm.submit("--time=0:26", "--signal=B:TERM@1", str(SCRIPT)))
    assert run.state == "PENDING", run
    assert "told to stop" not in run.output
    assert cluster.slurm.requeued() == ["101"]


# What follows is about the script alone: in the worker's place is a command that ends as one does.

TIRELESS = 'trap "exit 0" TERM; echo ready; while true; do sleep 0.05; done'


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    (tmp_path / "node").mkdir()
    environment = {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path / "node"),
        "WARPDESK_API_URL": "http://127.0.0.1:1",
        "WARPDESK_SECRETS": str(secrets(tmp_path / "secrets", redis_url="redis://127.0.0.1:1/0", api_key="wd_1")),
        "WARPDESK_DRAIN_SECONDS": "0",
    }
    return Slurm(tmp_path / "slurm", environment)


def run(slurm: Slurm, worker: str, *options: str, task: int | None = None, **environment: str) -> Run:
    command = slurm.folder / "command"
    command.write_text(f"#!/bin/bash\n{worker}\n")
    command.chmod(0o700)
    slurm.environment = {**slurm.environment, "WARPDESK_COMMAND": str(command), **environment}
    return slurm.run(slurm.submit(*options, str(SCRIPT)), task)


def test_of_an_array_the_task_that_ran_is_put_back_and_not_all(slurm: Slurm) -> None:
    ended = run(slurm, TIRELESS, "--array=0-7%4", "--time=0:04", "--signal=B:TERM@3", task=3)
    assert ended.state == "PENDING", ended
    assert slurm.requeued() == ["101_3"]


def test_a_canceled_job_is_not_put_back(slurm: Slurm) -> None:
    def cancel() -> None:
        while "ready" not in slurm.log_text():
            time.sleep(0.02)
        slurm.cancel(101)

    canceling = threading.Thread(target=cancel, daemon=True)
    canceling.start()
    ended = run(slurm, TIRELESS, "--time=1", "--signal=B:TERM@5")
    canceling.join(20)
    assert ended.state == "CANCELLED", ended
    assert "is not put back, it is CANCELLED" in ended.output
    assert slurm.requeued() == []


def test_a_worker_that_fails_fails_its_job_and_is_not_put_back(slurm: Slurm) -> None:
    ended = run(slurm, "exit 2")
    assert (ended.state, ended.exit_code) == ("FAILED", 2)
    assert "the worker ended with exit code 2" in ended.output
    assert slurm.requeued() == []


def test_the_worker_is_told_files_threads_and_limits(slurm: Slurm) -> None:
    secret = Path(slurm.environment["WARPDESK_SECRETS"])
    secrets(secret.parent / "more", ledger_url="postgresql://x@db/w", ledger_key="0f" * 32)
    for file in (secret.parent / "more").iterdir():
        file.rename(secret / file.name)
    ended = run(slurm, 'echo "$@"; env', WARPDESK_DRAIN_SECONDS="600", NUMBA_NUM_THREADS="64")
    lines = ended.output.splitlines()
    assert ended.state == "COMPLETED", ended
    command, environment = lines[0], dict(line.split("=", 1) for line in lines if "=" in line)
    longest = int(command.removeprefix("worker --idle-exit 300 --max-seconds "))
    assert 4 * 3600 - 665 <= longest <= 4 * 3600 - 660
    assert environment["NUMBA_NUM_THREADS"] == "8"
    assert environment["WARPDESK_LEDGER_KEY_FILE"] == str(secret / "ledger-key")
    assert environment["WARPDESK_KERNEL_CACHE"] == f"{slurm.environment['HOME']}/.cache/warpdesk/kernels"
    assert environment["WARPDESK_HOME"].startswith(f"{slurm.environment['TMPDIR']}/warpdesk-101-")
    assert not [
        name for name in environment if name in ("WARPDESK_REDIS_URL", "WARPDESK_API_KEY", "WARPDESK_LEDGER_URL")
    ]
    with pytest.MonkeyPatch.context() as patch:  # as the worker reads it
        for name in ("REDIS_URL_FILE", "API_KEY_FILE", "LEDGER_URL_FILE", "API_URL"):
            patch.setenv(f"WARPDESK_{name}", environment[f"WARPDESK_{name}"])
        read = WorkerSettings()
    assert (read.redis_url, read.api_key.get_secret_value()) == ("redis://127.0.0.1:1/0", "wd_1")
    assert read.ledger == "postgresql://x@db/w"


@pytest.mark.parametrize(("file", "mode"), [("redis-url", 0o640), ("redis-url", 0o604), ("api-key", 0o660)])
def test_a_secret_that_others_may_use_is_refused(slurm: Slurm, file: str, mode: int) -> None:
    Path(slurm.environment["WARPDESK_SECRETS"], file).chmod(mode)
    ended = run(slurm, "exit 0")
    assert (ended.state, ended.exit_code) == ("FAILED", 2)
    assert re.search(rf"{file} has the mode {mode:o}, others may use it: chmod 600 ", ended.output)
    assert "redis://" not in ended.output


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"WARPDESK_REDIS_URL": "redis://x:hunter2@y/0"}, "WARPDESK_REDIS_URL is in the environment"),
        ({"WARPDESK_API_URL": ""}, "WARPDESK_API_URL is not set"),
        ({"WARPDESK_SECRETS": "/nowhere"}, "there is no file /nowhere/redis-url"),
        ({"WARPDESK_DRAIN_SECONDS": "86400"}, "the time limit leaves 1[34][0-9]+ s, and 86400 s and a tenth are"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(slurm: Slurm, environment: dict[str, str], sentence: str) -> None:
    ended = run(slurm, "exit 0", **environment)
    assert (ended.state, ended.exit_code) == ("FAILED", 2)
    assert re.search(sentence, ended.output), ended.output
    assert "hunter2" not in ended.output


def test_outside_of_slurm_it_does_nothing() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    ended = subprocess.run(["bash", SCRIPT], env=clean, capture_output=True, text=True, timeout=20)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "this is no Slurm job" in ended.stderr


def test_slurm_signals_long_enough_before_the_end() -> None:
    options = options_of(SCRIPT)
    early = int(options["signal"].removeprefix("B:TERM@"))
    drain = int(re.findall(r"WARPDESK_DRAIN_SECONDS:-(\d+)", SCRIPT.read_text())[0])
    assert drain >= Settings().job_timeout
    assert early >= drain + 60 + 60  # Slurm may be a minute late, and what is done is delivered
    assert seconds(options["time"]) > 2 * early
    assert "requeue" in options


@pytest.mark.parametrize("file", sorted((ROOT / "deploy" / "slurm").glob("*.sbatch")), ids=lambda file: file.name)
def test_shellcheck_has_nothing_to_say(file: Path) -> None:
    result = subprocess.run([tool("shellcheck"), file], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout
