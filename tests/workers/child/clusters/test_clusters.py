"""Shards on real clusters of Ray and of Dask: the bytes of the whole job, also where a node is killed in mid-job.

`make peers` runs it, in an environment that has both engines.
"""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.parity import Case, assert_same
from tests.kernels.test_shards import Job, described, option, prices, product, sharded
from tests.waiting import wait_until
from tests.workers.child.clusters.engines import PATIENCE, Engine, engine
from tests.workers.child.clusters.operations import OPERATIONS
from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.kernels.shards import merge
from warpdesk_server.workers.child.clusters import cluster_job
from warpdesk_server.workers.child.clusters.cluster import Cluster, NoCluster, NodeDied
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob
from warpdesk_server.workers.child.clusters.link import open_cluster
from warpdesk_server.workers.child.device import cpu_name

KINDS = ("ray", "dask")

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


@dataclass(frozen=True)
class Site:
    """A cluster that runs, and a connection to it."""

    engine: Engine
    cluster: Cluster


@contextmanager
def site(kind: str, nanny: bool = False, **variables: str) -> Iterator[Site]:
    def connected() -> Cluster:
        return open_cluster(made.address)

    with (
        engine(kind, nanny, **variables) as made,
        closing(wait_until(connected, "no connection", PATIENCE, unknown=(NoCluster,))) as cluster,
    ):
        yield Site(made, cluster)


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A cluster that tests use one after another, which leave its nodes alive."""
    with site(request.param) as made:
        yield made


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def catalogue_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_job, "_catalogue", lambda: OPERATIONS)


def sent(job: Job, operation: str = "") -> ClusterJob:
    params = job.params.model_dump_json()
    return ClusterJob(operation or job.operation.name, params, described(job.inputs), job.case.seed)


def means() -> Job:
    """Moving means of the length that `gated` and its like take."""
    return sharded(Case("sma", {"period": 5}, prices(12, 300).inputs))


def assert_whole(where: Site, job: Job, operation: str = "") -> None:
    """The shards of a job, each computed on the cluster as a worker hands it over, make the answer of the job."""
    request = sent(job, operation)
    given = [(shard, where.cluster.compute(request, shard, job.inputs).arrays) for shard in job.sharding.cut(2)]
    assert_same(job.case, job.case.run(), merge(job.operation, job.params, job.sharding, given))


def whole(job: Job) -> Shard:
    return Shard(0, job.sharding.units)


@contextmanager
def meanwhile(act: Callable[[], object], where: Site) -> Iterator[None]:
    """Do something once both nodes compute `gated`."""

    def run() -> None:
        wait_until(lambda: len(where.engine.at_work()) == 2, "no two nodes are at work", PATIENCE)
        act()

    with ThreadPoolExecutor(1) as threads:
        acted = threads.submit(run)
        yield
        acted.result()


JOBS = {
    "monte_carlo": option("asian_arithmetic", steps=20, paths=60_000),
    "matmul, one b for all": product((1_000, 40), (40, 30)),
    "matmul, a batch": product((7, 30, 20), (7, 20, 10)),
    "rsi of assets": prices(33, 400),
}


@pytest.mark.parametrize("which", JOBS)
def test_shards_of_a_cluster_make_the_bytes_of_the_whole_job(shared: Site, which: str) -> None:
    assert_whole(shared, sharded(JOBS[which]))


def test_an_answer_tells_what_computed_it(shared: Site) -> None:
    job = means()
    computed = shared.cluster.compute(sent(job), whole(job), job.inputs)
    assert (computed.backend, computed.device) == ("cpu", cpu_name())


def test_an_error_of_an_operation_has_its_type_and_is_not_tried_again(shared: Site) -> None:
    job = means()
    with pytest.raises(ZeroDivisionError):
        shared.cluster.compute(sent(job, "failing"), whole(job), job.inputs)
    with pytest.raises(InvalidRequest) as refusal:
        shared.cluster.compute(sent(job, "refusing"), whole(job), job.inputs)
    assert refusal.value.problems[0].pointer == "/inputs/close"
    assert_whole(shared, job)


def test_what_is_left_is_canceled_when_nobody_reads_on(shared: Site) -> None:
    job = means()
    shared.engine.shut_gate()
    shards = shared.cluster.run(sent(job, "gated"), job.sharding.cut(6), job.inputs)
    with meanwhile(shared.engine.open_gate, shared):
        next(shards)
    shards.close()  # type: ignore[attr-defined]
    assert_whole(shared, job)


def test_a_node_of_another_release_is_refused(shared: Site) -> None:
    job = means()
    with pytest.raises(NoCluster, match="install one release"):
        shared.cluster.compute(replace(sent(job), kernels="0123456789ab"), whole(job), job.inputs)


def test_a_node_that_is_killed_in_mid_job_changes_no_byte(own: Site) -> None:
    def kill() -> None:
        os.kill(min(own.engine.at_work()), signal.SIGKILL)
        own.engine.open_gate()

    with meanwhile(kill, own):
        assert_whole(own, means(), "gated")
    assert_whole(own, sharded(product((1_000, 40), (40, 30))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_ends_each_process_is_told_apart(kind: str) -> None:
    job = means()
    with site(kind, nanny=True) as made:
        with pytest.raises(NodeDied):
            made.cluster.compute(sent(job, "dying"), whole(job), job.inputs)
        assert_whole(made, job)


def test_a_cluster_whose_head_is_killed_says_so(own: Site) -> None:
    job = means()
    with (
        meanwhile(lambda: os.killpg(own.engine.head.pid, signal.SIGKILL), own),
        pytest.raises(NoCluster, match=own.engine.address),
    ):
        own.cluster.compute(sent(job, "gated"), whole(job), job.inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_lacks_the_service_is_named(kind: str, tmp_path: Path) -> None:
    job = means()
    missing = "raise ModuleNotFoundError(\"No module named 'warpdesk_server'\", name='warpdesk_server')\n"
    (tmp_path / "warpdesk_server.py").write_text(missing)
    with site(kind, PYTHONPATH=str(tmp_path)) as made, pytest.raises(NoCluster, match="has no warpdesk_server"):
        made.cluster.compute(sent(job), whole(job), job.inputs)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:9", "dask://127.0.0.1:9"])
def test_a_cluster_that_is_away_is_named(address: str) -> None:
    with pytest.raises(NoCluster, match=f"the cluster {address} cannot be used"):
        open_cluster(address)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_hands_its_shards_to_a_cluster_of_which_a_node_is_killed(kind: str, desk: Desk) -> None:
    """The whole way: the queue's leases and fences, the worker's processes, the store."""
    job = means()
    operations = "tests.workers.child.clusters.operations:OF_WORKER"
    inputs = {name: desk.array(array) for name, array in job.inputs.items()}
    fields = {"params": job.params.model_dump(), "shards": 3, "checkpoint_bytes": 1 << 20, "timeout": 240.0}
    with engine(kind) as made:
        desk.start_worker(WARPDESK_OPERATIONS=operations, WARPDESK_TAKES="all", WARPDESK_SHARDS_ON=made.address)
        job_id = desk.submit("gated", inputs, **fields)
        wait_until(lambda: len(made.at_work()) == 2, desk.log, PATIENCE)
        os.kill(min(made.at_work()), signal.SIGKILL)
        made.open_gate()
        record = desk.wait(job_id)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 1), record
    assert record.result is not None
    (output,) = job.operation.outputs
    answer = np.load(desk.store.result(record.result) / f"{output.name}.npy")
    assert_same(job.case, job.case.run(), {output.name: answer})
    assert "is computed here" not in desk.log()
