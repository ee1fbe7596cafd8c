"""With WARPDESK_DURABILITY=replicated an answer of Redis comes once a replica has on the disk what it tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from tests.chaos.cluster import Cluster
from tests.conftest import free_port
from tests.redis_servers import server
from tests.waiting import wait_until
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.replicated_jobs import ReplicatedJobs
from warpdesk_server.workers.queue.replication import NotReplicated, Replicated, Unreplicable, require_replicable


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), server("valkey")) as running:
        yield running


@pytest.fixture
def plain(cluster: Cluster) -> Iterator[redis.Redis]:
    with connect(cluster.url) as client:
        yield client


def test_what_is_answered_is_in_a_replica(cluster: Cluster, plain: redis.Redis) -> None:
    replicas = [machine.client() for machine in cluster.machines if machine is not cluster.primary()]
    for number in range(20):
        assert Replicated(plain, 1, 2.0).incr("counter") == number + 1
        # Who says so has it in its file and in its memory.
        assert str(number + 1).encode() in [replica.get("counter") for replica in replicas]
    for replica in replicas:
        replica.close()


def test_an_answer_that_no_replica_confirms_is_an_error_and_may_have_been_done(
    cluster: Cluster, plain: redis.Redis
) -> None:
    with cluster.split(cluster.primary()), pytest.raises(NotReplicated, match=r"0 of 1 replicas .* 300 ms"):
        Replicated(plain, 1, 0.3).set("unconfirmed", "value")
    wait_until(cluster.whole, unknown=(RedisError,))


def test_a_read_waits_for_what_another_connection_wrote(cluster: Cluster, plain: redis.Redis) -> None:
    with cluster.split(cluster.primary()):
        plain.set("seen", "by another")
        assert plain.get("seen") == b"by another"
        with pytest.raises(NotReplicated):
            Replicated(plain, 1, 0.3).get("seen")
    wait_until(cluster.whole, unknown=(RedisError,))


def test_more_replicas_than_there_are_never_confirm(cluster: Cluster, plain: redis.Redis) -> None:
    assert Replicated(plain, 2, 2.0).set("two", "value")
    with pytest.raises(NotReplicated, match="2 of 3 replicas"):
        Replicated(plain, 3, 0.3).set("three", "value")


def test_errors_of_redis_are_those_that_it_gives_without(plain: redis.Redis) -> None:
    confirmed = Replicated(plain, 1, 2.0)
    confirmed.set("text", "a")
    with pytest.raises(NoScriptError):
        confirmed.evalsha("0" * 40, 0)
    with pytest.raises(ResponseError, match=r"^value is not an integer"):
        confirmed.incr("text")
    with confirmed.pipeline(transaction=False) as pipe:
        pipe.get("text")
        pipe.incr("text")
        found, error = pipe.execute(raise_on_error=False)
    assert (found, type(error)) == (b"a", ResponseError)


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("bundled", {}, "needs Redis 7.2 or later, or Valkey, and the connected one is 6.2"),
        ("valkey", {"appendonly": "no"}, "needs an append-only file"),
        ("valkey", {"appendfsync": "everysec"}, "needs `appendfsync always`, and the connected Redis has everysec"),
    ],
)
def test_a_redis_that_cannot_confirm_is_told_by_what_it_lacks(
    name: str, settings: dict[str, str], why: str, tmp_path: Path
) -> None:
    with RedisServer(tmp_path, binary=server(name)) as running, connect(running.url) as connection:
        for option, value in settings.items():
            connection.config_set(option, value)
        with pytest.raises(Unreplicable, match=why):
            require_replicable(running.url)


# What a failover may take back: a view of the queue, leases and reports that are renewed, counts, and marks that are
# set again. What is `checked` is asked of an attempt that runs.
UNCONFIRMED = {
    "allow", "busy", "checked", "count", "count_left", "position", "processes", "progress", "queues", "renew", "report",
    "reported", "sign_older", "time", "unregister", "in_use", "length", "waiting_by_owner", "waiting_long_work",
    "paused", "oldest", "suspended", "waiting_tasks", "workers", "mean_launches", "counted", "reported_steps",
}  # fmt: skip


def test_each_call_of_the_queue_is_confirmed_or_may_be_taken_back() -> None:
    calls = {name for name in dir(JobQueue) if not name.startswith("_")}
    confirmed = {name for name in vars(ReplicatedJobs) if not name.startswith("_")}

    assert calls - confirmed == {*UNCONFIRMED, "enqueue"}  # which is `enqueue_all` of one


def test_a_redis_that_can_confirm_or_is_away_is_taken(cluster: Cluster) -> None:
    require_replicable(cluster.url)
    require_replicable(f"redis://127.0.0.1:{free_port()}/0")
