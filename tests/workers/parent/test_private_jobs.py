"""A private job, whatever its end: its secrets are erased, its key is kept nowhere, nothing of its data is told."""

import json

import numpy as np
from redis import Redis

from tests.claims import finish, take
from tests.kernels.dp_noise.cases import AGGREGATE
from tests.workers.conftest import OWNER, Desk
from tests.workers.operations import OPERATIONS as MISBEHAVING
from warpdesk.models import State
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.protocol import Failed
from warpdesk_server.workers.queue.records import Claim, Ending

# Beyond what float64 holds exactly, so that dp_noise refuses it once it sees it.
MARKER = 2**53 + 271828


def everything(connection: Redis) -> bytes:
    """Every key and value of the database."""
    read = {
        b"string": lambda key: connection.get(key),
        b"hash": lambda key: (
            json.dumps({k.hex(): v.hex() for k, v in connection.hgetall(key).items()}).encode()
            + b"".join(connection.hvals(key))
        ),
        b"list": lambda key: b" ".join(connection.lrange(key, 0, -1)),
        b"set": lambda key: b" ".join(connection.smembers(key)),
        b"zset": lambda key: b" ".join(connection.zrange(key, 0, -1)),
        b"stream": lambda key: repr(connection.xrange(key)).encode(),
        b"none": lambda key: b"",  # gone meanwhile
    }
    return b"\n".join(key + b" " + read[connection.type(key)](key) for key in connection.scan_iter())


def test_secrets_are_erased_at_commit_and_nothing_private_is_in_redis(desk: Desk) -> None:
    desk.start_worker()
    secret = desk.array([1234567890123, 6], "int64")
    key = desk.marker("key")
    record = desk.wait(desk.submit("whisper", {"secret": secret}, params={"marker": str(key)}))
    assert record.state is State.SUCCEEDED
    desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")
    assert record.provenance is not None
    assert record.provenance.compute_seconds is None
    assert record.result is not None
    noisy = np.load(desk.store.result(record.result) / "noisy.npy").tolist()
    with connect(desk.url) as connection:
        kept = everything(connection)
    for private in (key.read_bytes(), key.read_bytes().hex().encode(), b"1234567890123", str(noisy[0]).encode()):
        assert private not in kept
        assert private not in desk.log().encode()


def test_a_secret_two_jobs_read_is_erased_with_the_second(desk: Desk) -> None:
    secret = desk.array([5, 6], "int64")
    marker = desk.marker("key")
    with desk.gate() as gate:
        first = desk.submit("whisper", {"secret": secret})
        second = desk.submit("whisper", {"secret": secret}, params={"marker": str(marker), "gate": gate})
        desk.start_worker(ready=False)  # it may begin the second before it was seen to be ready
        desk.wait(first)
        desk.until(marker.exists, "the second did not begin")
        assert desk.store.path(OWNER, secret).exists()
    assert desk.wait(second).state is State.SUCCEEDED
    desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")


def test_noise_of_an_attempt_that_did_not_commit_is_deleted(desk: Desk) -> None:
    desk.start_worker()
    secret, key = desk.array([5, 6], "int64"), desk.marker("key")
    with desk.gate() as gate:
        job_id = desk.submit("whisper", {"secret": secret}, params={"marker": str(key), "gate": gate})
        desk.until(key.exists, "it did not begin")
        # Another parent took the job over while this one was cut off: attempt 1 is stale when it answers.
        (cut_off,) = desk.queue.workers()
        assert [ended.how for ended in desk.queue.reap([cut_off.name], judge_leases=False)] == ["queued"]
        assert desk.queue.claim(Claim("another")) is not None
    desk.until(lambda: f"{job_id} attempt 1" in desk.log(), "the stale attempt was not stopped")
    desk.until(lambda: desk.results() == [], "the stale attempt's noise is still there")
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt, record.result) == (State.RUNNING, 2, None)
    assert desk.store.path(OWNER, secret).exists()  # the next attempt needs it


def test_a_canceled_private_job_leaves_neither_noise_nor_secret(desk: Desk) -> None:
    desk.start_worker()
    secret, key = desk.array([5, 6], "int64"), desk.marker("key")
    with desk.gate() as gate:
        job_id = desk.submit("whisper", {"secret": secret}, params={"marker": str(key), "gate": gate})
        desk.until(key.exists, "it did not begin")
        desk.queue.cancel(job_id)
        desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")
        assert desk.results() == []


def test_a_refusal_by_dp_noise_does_not_tell_redis_the_value_it_refused(desk: Desk) -> None:
    values = desk.array([MARKER, 1], "int64")
    job_id = desk.submit("dp_noise", {"values": values}, params=AGGREGATE)
    job = take(desk.queue, job_id)
    (outcome,) = execute.run([(job.request, job.attempt)], desk.store, without_gpu("not needed"), OPERATIONS)
    assert isinstance(outcome, Failed)
    assert outcome.code == "invalid-input"
    assert "2**53" in outcome.message  # the reason is told
    assert finish(desk.queue, job, outcome) == "done"
    record = desk.queue.get(job_id)
    assert record is not None
    assert record.state is State.FAILED
    with connect(desk.url) as connection:
        kept = everything(connection)
    assert b"2**53" in kept
    assert str(MARKER).encode() not in kept


def test_a_job_given_back_and_canceled_meanwhile_takes_its_secret_along(desk: Desk) -> None:
    secret = desk.array([5, 6], "int64")
    job_id = desk.submit("whisper", {"secret": secret})
    job = take(desk.queue, job_id)
    desk.queue.cancel(job_id)
    assert desk.store.path(OWNER, secret).exists()
    Endings(desk.queue, desk.store, MISBEHAVING).end([Ending(job, how="returned")])
    assert not desk.store.path(OWNER, secret).exists()


def test_a_job_given_back_keeps_its_secret_for_the_next_attempt(desk: Desk) -> None:
    secret = desk.array([5, 6], "int64")
    job = take(desk.queue, desk.submit("whisper", {"secret": secret}))
    Endings(desk.queue, desk.store, MISBEHAVING).end([Ending(job, how="returned")])
    assert desk.store.path(OWNER, secret).exists()


def test_a_requeued_job_whose_deadline_passes_in_the_queue_loses_its_secret_though_nobody_asks_for_it(
    desk: Desk, connection: Redis
) -> None:
    secret = desk.array([5, 6], "int64")
    job_id = desk.submit("whisper", {"secret": secret}, deadline=desk.queue.time() + 60.0)
    job = take(desk.queue, job_id)
    Endings(desk.queue, desk.store, MISBEHAVING).end([Ending(job, how="returned")])
    connection.hset(f"warpdesk:job:{job_id}", "deadline", "1.0")
    connection.zadd("warpdesk:deadlines", {job_id: 1.0})
    desk.start_worker()
    desk.until(lambda: not desk.store.path(OWNER, secret).exists(), "the secret is still there")
    record = desk.queue.get(job_id)
    assert record is not None
    assert (record.state, record.attempt) == (State.EXPIRED, 1)
