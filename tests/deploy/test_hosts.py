"""A worker on a host of its own: a network namespace that reaches Redis over TLS and the API, and sees no spool."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.conftest import Live, live
from tests.cables import Cable, cable
from tests.conftest import ROOT
from tests.deploy.redis_of_deploy import Secured, secured_redis
from tests.link import Link
from tests.workers.conftest import Desk
from tests.workers.operations import OPERATIONS
from warpdesk.models import State
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.store.spool import SpoolStore


@dataclass
class Hosts:
    """The service on this host, and a worker on another."""

    api: Live
    owner: httpx.Client
    desk: Desk  # of this host, with the spool
    redis: Secured
    cable: Cable
    door: Link  # to the API
    home: Path  # of the other host

    def start_far_worker(self, key: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
        environment = {
            "WARPDESK_HOME": str(self.home),
            "WARPDESK_REDIS_URL": self.redis.url("worker"),
            "WARPDESK_API_URL": f"http://{self.cable.here}:{self.door.port}",
            "WARPDESK_API_KEY": key,
            "WARPDESK_OPERATIONS": "tests.workers.operations:OPERATIONS",
            "WARPDESK_DEVICE": "cpu",
        }
        # Mounted where the other host alone sees it: nothing of the service's directory is there.
        blind = 'mount -t tmpfs none "$0" && exec "$@"'
        service = str(self.api.settings.home)
        with (self.desk.home / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *("ip", "netns", "exec", self.cable.namespace, "sh", "-c", blind, service),
                    *(sys.executable, "-m", "warpdesk_server.workers.parent.main"),
                ],
                cwd=ROOT,
                env={**clean, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.desk.workers.append(process)
        self.desk.until(lambda: any(worker.state == "ready" for worker in self.desk.queue.workers()), "no far worker")

    def submit(self, **body: Any) -> str:
        answer = self.owner.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def total(self, job_id: str) -> float:
        total: float = self.owner.get(f"/v1/jobs/{job_id}/result").json()["outputs"]["total"]
        return total

    def attempt(self, job_id: str) -> int:
        record = self.api.queue.get(job_id)
        return 0 if record is None else record.attempt

    def endings(self, job_id: str) -> list[str]:
        return [event.event for event in self.api.queue.events(job_id) if event.event not in ("queued", "running")]

    def kept(self, job_id: str) -> list[str]:
        """The results of a job's attempts in the service's store, and whatever is on its way there."""
        root = self.api.settings.store_directory
        on_its_way = [path.name for path in (root / "uploads").iterdir()]
        return sorted(path.name for path in (root / "results").glob(f"{job_id}.*")) + on_its_way


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    tmp_path = tmp_path_factory.mktemp("hosts")
    with ExitStack() as stack:
        wire = stack.enter_context(cable())
        secured = stack.enter_context(secured_redis(tmp_path, wire.here))
        home = tmp_path / "service"
        owner, key = create_key(home, "owner", ["submit", "read", "cancel"]), create_key(home, "far", ["worker"])
        api = stack.enter_context(live(home, secured.url("api"), OPERATIONS))
        port = httpx.URL(api.url).port
        assert port is not None
        door = stack.enter_context(Link("127.0.0.1", port, at=wire.here))
        client = httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {owner}"}, timeout=60)
        connection = connect(secured.url("worker"))
        store = SpoolStore(home / "store")
        desk = Desk(secured.url("worker"), tmp_path, JobQueue(connection, store.mac_of), store)
        for close in (connection.close, client.close, desk.close):
            stack.callback(close)
        made = Hosts(api, client, desk, secured, wire, door, tmp_path / "far")
        made.start_far_worker(key)
        yield made


def begin_nap(hosts: Hosts, gate: str, name: str) -> str:
    marker = hosts.desk.marker(name)
    job_id = hosts.submit(operation="nap", params={"seconds": 0.0, "marker": str(marker), "gate": gate})
    hosts.desk.napping(marker)
    return job_id


def test_jobs_run_on_a_host_without_the_spool_and_once_where_the_cable_was_out(hosts: Hosts) -> None:
    values = np.arange(100_000.0)
    array_id = hosts.owner.put("/v1/arrays", content=npy(values), headers=NPY).json()["id"]
    jobs = [
        hosts.submit(operation="double", inputs={"values": {"array": array_id}}, result_ttl_s=1000.0 + number)
        for number in range(4)
    ]
    for job_id in jobs:
        record = hosts.desk.wait(job_id)
        assert record.state is State.SUCCEEDED, record
        assert hosts.total(job_id) == 2 * values.sum()
        answer = hosts.owner.get(f"/v1/jobs/{job_id}/result/doubled", headers={"Accept": "application/x-npy"})
        assert answer.content == npy(2 * values)
    with hosts.desk.gate() as gate:
        napping = begin_nap(hosts, gate, "once")
        hosts.cable.pull()
    hosts.desk.until(lambda: list(hosts.home.rglob("result.json")), "the far worker has no result")
    hosts.cable.plug()
    record = hosts.desk.wait(napping)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1)
    assert hosts.endings(napping) == ["succeeded"]
    assert list(hosts.home.rglob("result.json")) == []


def test_a_far_worker_takes_no_job_while_it_cannot_have_its_inputs(hosts: Hosts) -> None:
    lines = hosts.desk.log().count("no job is claimed")
    hosts.door.down()
    hosts.desk.until(lambda: hosts.desk.log().count("no job is claimed") > lines, "the far worker does not notice")
    sooner = hosts.submit(operation="double", inputs={"values": {"data": [6.0]}})  # handed to it, perhaps
    with hosts.redis.client("operator") as redis:
        states = "rq:worker:*"
        hosts.desk.until(
            lambda: b"suspended" in [redis.hget(key, "state") for key in redis.keys(states)], "it does not pause"
        )
    job_id = hosts.submit(operation="double", inputs={"values": {"data": [7.0]}})
    assert hosts.api.queue.length() == 2
    assert hosts.attempt(job_id) == 0
    hosts.door.up = True
    assert hosts.desk.wait(sooner).state is State.SUCCEEDED
    assert hosts.desk.wait(job_id).attempt == 1
    assert (hosts.total(sooner), hosts.total(job_id)) == (12.0, 14.0)


def test_a_job_whose_host_was_cut_off_runs_elsewhere_and_its_late_result_is_refused(hosts: Hosts) -> None:
    with hosts.desk.gate() as gate:
        job_id = begin_nap(hosts, gate, "twice")
        hosts.cable.pull()
        hosts.desk.start_worker(WARPDESK_STORE=str(hosts.api.settings.store_directory))
        hosts.desk.until(lambda: hosts.attempt(job_id) == 2, "nobody took the job over")
    record = hosts.desk.wait(job_id)
    near = hosts.desk.workers.pop()
    near.kill()
    near.wait()
    assert (record.state, record.attempt) == (State.SUCCEEDED, 2)
    hosts.desk.until(lambda: list(hosts.home.rglob("result.json")), "the far worker has no result")
    hosts.cable.plug()
    hosts.desk.until(lambda: not list(hosts.home.rglob("result.json")), "the far worker keeps its result")
    hosts.desk.until(lambda: hosts.kept(job_id) == [f"{job_id}.2"], "the late result was kept")
    assert hosts.endings(job_id) == ["succeeded"]
