"""The function that runs on a node of a cluster, without an engine."""

import pickle
from dataclasses import replace

import pytest

from tests.kernels.parity import assert_same
from tests.kernels.test_shards import Job, described, prices, sharded
from tests.workers.child.clusters.operations import OPERATIONS
from warpdesk_server.kernels.problems import InvalidRequest, Problem
from warpdesk_server.kernels.sharding import Shard
from warpdesk_server.kernels.shards import merge, parts
from warpdesk_server.workers.child.clusters import cluster_job, entry
from warpdesk_server.workers.child.clusters.cluster import NoCluster
from warpdesk_server.workers.child.clusters.cluster_job import ClusterJob, OtherKernels, ShardResult
from warpdesk_server.workers.child.clusters.link import ClusterLink, open_cluster


@pytest.fixture(autouse=True)
def settings_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_job, "_catalogue", lambda: OPERATIONS)
    monkeypatch.setattr(entry, "_caches", dict)
    monkeypatch.setenv("WARPDESK_DEVICE", "cpu")


@pytest.fixture
def job() -> Job:
    return sharded(prices(7, 100))


def sent(job: Job, operation: str = "rsi") -> ClusterJob:
    params = OPERATIONS[operation].params.model_validate({"period": 14}, strict=False)
    return ClusterJob(operation, params.model_dump_json(), described(job.inputs))


def result(job: Job, shard: Shard, request: ClusterJob) -> ShardResult | Exception:
    return entry.compute_shard(request, shard, 1, *parts(job.sharding, shard, job.inputs).values())


def test_shards_of_inputs_that_are_not_writable_make_the_answer(job: Job) -> None:
    for array in job.inputs.values():
        array.flags.writeable = False
    given = []
    for shard in job.sharding.cut(3):
        computed = result(job, shard, pickle.loads(pickle.dumps(sent(job))))  # noqa: S301 (ours)
        assert isinstance(computed, ShardResult)
        assert computed.backend == "cpu"
        given.append((shard, computed.arrays))
    assert_same(job.case, job.case.run(), merge(job.operation, job.params, job.sharding, given))


def test_an_error_of_an_operation_is_a_value_that_can_be_sent(job: Job) -> None:
    whole = Shard(0, 7)
    assert isinstance(result(job, whole, sent(job, "failing")), ZeroDivisionError)
    refusal = pickle.loads(pickle.dumps(result(job, whole, sent(job, "refusing"))))  # noqa: S301 (ours)
    assert isinstance(refusal, InvalidRequest)
    assert refusal.problems == (Problem("/inputs/close", "no"),)


def test_a_node_of_other_kernels_computes_nothing(job: Job) -> None:
    with pytest.raises(OtherKernels, match="install one release"):
        result(job, Shard(0, 7), replace(sent(job), kernels="0123456789ab"))


@pytest.mark.parametrize("address", ["", "redis://127.0.0.1", "ray://", "127.0.0.1:8786"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is no cluster"):
        open_cluster(address)


def test_a_cluster_that_was_away_is_not_asked_for_a_while(job: Job) -> None:
    link = ClusterLink("dask://127.0.0.1:9", pause=1000.0)
    for reason in ("cannot be used: (?!it could)", "could not be a moment ago"):
        with pytest.raises(NoCluster, match=reason):
            link.compute(sent(job), Shard(0, 7), job.inputs)
