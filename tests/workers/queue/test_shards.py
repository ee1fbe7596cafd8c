"""Shards of a job in Redis: each is computed by whoever has its claim, counts once, and is gone with its job."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from redis import Redis

from tests.claims import claim, finish, request, succeeded, take
from tests.workers.queue.snapshot import Snapshot
from warpdesk.models import State
from warpdesk_server.workers.queue import keys
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import MAX_ATTEMPTS, Failed, Provenance
from warpdesk_server.workers.queue.records import Batch, Claim, Held, Stale

pytestmark = pytest.mark.parametrize("redis_url", ["redis_server", "oldest_redis"], indirect=True)

JOB = "job_0001"
FOREVER = 1e6


def lead(queue: JobQueue, shards: int = 2) -> tuple[Held, Held]:
    """A job that "lead" has, and its shard 0, which it has too."""
    queue.enqueue(request(shards=shards))
    held = take(queue, worker="lead")
    own = next_of(queue, held)
    assert own.id == f"{JOB}:0"
    return held, own


def next_of(
    queue: JobQueue, held: Held, patience: float = FOREVER, worker: str = "lead", again: int | None = None
) -> Held:
    """The shard that the lead computes next."""
    found = queue.claim_shard(Claim(worker), held, patience, again=again)
    assert isinstance(found, Batch)
    (shard,) = found.jobs
    return shard


def help_out(queue: JobQueue, worker: str = "helper") -> Held:
    """A shard that another worker computes."""
    batch = queue.claim(Claim(worker))
    assert batch is not None
    (shard,) = batch.jobs
    assert shard.request.shard is not None
    return shard


def done(queue: JobQueue, shard: Held) -> str:
    return finish(queue, shard, succeeded(shard))


def lapse(connection: Redis, *ids: str) -> None:
    connection.zadd(keys.LEASES, dict.fromkeys(ids, 1.0), xx=True)


def of_shards(connection: Redis) -> list[str]:
    """The keys of the job's shards, and their leases."""
    leases = [lease for lease in Snapshot(connection).members(keys.LEASES) if lease.startswith(f"{JOB}:")]
    return sorted(key.decode() for key in connection.scan_iter(f"{keys.job_key(JOB)}:*")) + leases


@contextmanager
def full(connection: Redis) -> Iterator[None]:
    connection.config_set("maxmemory", "1mb")
    try:
        yield
    finally:
        connection.config_set("maxmemory", 0)


# A claim.


def test_each_shard_is_claimed_once_and_all_are_done_once(queue: JobQueue, connection: Redis) -> None:
    held, own = lead(queue, 3)
    shards = [help_out(queue, "helper_1"), help_out(queue, "helper_2")]
    assert sorted(shard.id for shard in shards) == [f"{JOB}:1", f"{JOB}:2"]
    assert claim(queue, "helper_3") == []
    assert queue.renew([held, own, *shards]) == ([], [])
    assert [done(queue, shard) for shard in shards] == ["done", "done"]
    first = next_of(queue, held)
    assert first.id == f"{JOB}:0", "its own, whose claim it did not hear of"
    assert done(queue, first) == "done"
    found = queue.claim_shard(Claim("lead"), held, FOREVER)
    assert isinstance(found, list)
    assert all(isinstance(each, Provenance) for each in found)
    assert len(found) == 3
    assert finish(queue, held, succeeded(held)) == "done"
    assert of_shards(connection) == []


def test_a_shard_whose_record_was_lost_is_computed_again(queue: JobQueue, connection: Redis) -> None:
    held, own = lead(queue)
    done(queue, help_out(queue))
    done(queue, own)
    connection.delete(f"{keys.job_key(JOB)}:1")
    shard = next_of(queue, held)
    assert shard.id == f"{JOB}:1"
    assert done(queue, shard) == "done"
    assert isinstance(queue.claim_shard(Claim("lead"), held, FOREVER), list)


def test_a_shard_that_cannot_be_merged_is_computed_again_by_the_lead_alone(queue: JobQueue) -> None:
    """Workers of another release would compute it as before. A lost reply changes nothing."""
    held, own = lead(queue)
    done(queue, help_out(queue))
    done(queue, own)
    claim_again = Claim("lead")
    for _ in range(2):
        found = queue.claim_shard(claim_again, held, FOREVER, again=1)
        assert isinstance(found, Batch)
        assert [shard.id for shard in found.jobs] == [f"{JOB}:1"]
        assert claim(queue, "helper") == []
    assert done(queue, found.jobs[0]) == "done"
    assert isinstance(queue.claim_shard(Claim("lead"), held, FOREVER), list)
    progress = [event.progress for event in queue.events(JOB) if event.event == "progress"]
    assert progress == [0.5, 1.0, 1.0]


# Whoever has no claim any more.


def test_a_lead_that_lost_the_job_claims_no_shard(queue: JobQueue, connection: Redis) -> None:
    held, _ = lead(queue)
    lapse(connection, JOB, f"{JOB}:0")
    queue.reap([], judge_leases=True)
    with pytest.raises(Stale):
        next_of(queue, held)
    successor = take(queue, worker="lead_2")
    assert next_of(queue, successor, worker="lead_2").id == f"{JOB}:0"
    with pytest.raises(Stale):
        next_of(queue, held)
    with pytest.raises(Stale):
        next_of(queue, held, again=0)


def test_a_shard_of_a_lost_lead_counts_and_so_does_that_of_its_helper(queue: JobQueue, connection: Redis) -> None:
    _, own = lead(queue)
    shard = help_out(queue)
    lapse(connection, JOB)
    queue.reap([], judge_leases=True)
    assert done(queue, shard) == "done", "while it is queued"
    successor = take(queue, worker="lead_2")
    assert done(queue, own) == "done"
    found = queue.claim_shard(Claim("lead_2"), successor, FOREVER)
    assert isinstance(found, list)


@pytest.mark.parametrize("how", ["canceled", "erased", "succeeded", "failed", "rerun"])
def test_a_helper_that_comes_after_the_end_changes_nothing(queue: JobQueue, connection: Redis, how: str) -> None:
    held, _ = lead(queue)
    shard = help_out(queue)
    match how:
        case "canceled":
            queue.cancel(JOB)
        case "erased":
            queue.erase(JOB)
        case "succeeded":
            finish(queue, held, succeeded(held))
        case "failed":
            finish(queue, held, Failed(code="operation-error", message="no"))
        case "rerun":
            for _ in range(3):
                finish(queue, held, how="struck", reason="it died", failure=Failed(code="worker-died", message="no"))
                held = take(queue, worker="lead") if queue.length() else held
            assert queue.rerun(JOB)
            held = take(queue, worker="lead")
            next_of(queue, held)
    before = Snapshot(connection).keys
    assert queue.renew([shard])[0] == [shard]
    assert [done(queue, shard), finish(queue, shard, how="returned", reason="x")] == ["stale", "stale"]
    queue.reap(["helper"], judge_leases=False)
    assert Snapshot(connection).keys == before


@pytest.mark.parametrize("how", ["succeeded", "returned", "lapsed"])
@pytest.mark.parametrize("end", ["ended", "erased", "lost"])
def test_shards_that_the_release_before_left_behind_are_dropped(
    queue: JobQueue, connection: Redis, how: str, end: str
) -> None:
    """It ends jobs without a word to their helpers, and deletes records."""
    held, _ = lead(queue)
    shard = help_out(queue)
    record = {key: connection.dump(key) for key in connection.scan_iter(f"{keys.job_key(JOB)}:*")}
    finish(queue, held, succeeded(held))
    for key, content in record.items():
        connection.restore(key, 0, content)
    connection.zadd(keys.LEASES, {shard.id: 1.0})
    if end == "lost":
        connection.delete(keys.job_key(JOB), f"{keys.EVENTS_OF}{JOB}")
    else:
        connection.hset(keys.job_key(JOB), mapping={"shards": 2})
    if end == "erased":
        queue.erase(JOB)
    before = {key: value for key, value in Snapshot(connection).keys.items() if JOB in key and f"{JOB}:" not in key}
    if how == "lapsed":
        queue.reap([], judge_leases=True)
    else:
        assert finish(queue, shard, succeeded(shard) if how == "succeeded" else None, how=how) == "stale"
    after = {key: value for key, value in Snapshot(connection).keys.items() if JOB in key and f"{JOB}:" not in key}
    assert after == before
    assert shard.id not in Snapshot(connection).members(keys.LEASES)
    assert f"{keys.JOB}{shard.id}" not in Snapshot(connection).keys


def test_a_dead_letter_that_runs_again_begins_with_all_its_shards(queue: JobQueue, connection: Redis) -> None:
    held, _ = lead(queue)
    done(queue, help_out(queue))
    died = Failed(code="worker-died", message="no")
    for _ in range(3):
        finish(queue, held, how="struck", reason="it died", failure=died)
        held = take(queue, worker="lead") if queue.length() else held
    assert of_shards(connection) == []
    queue.rerun(JOB)
    again = take(queue, worker="lead")
    assert {next_of(queue, again).id, help_out(queue).id} == {f"{JOB}:0", f"{JOB}:1"}


# A lead that is slow.


def delay(connection: Redis, shard: str = f"{JOB}:0", age: int = 3) -> None:
    """As if a worker had been computing a shard for so many seconds."""
    assert connection.hget(keys.job_key(shard), "state") == b"running"
    connection.hset(keys.job_key(shard), "age", age)


def test_a_worker_that_finds_nothing_else_takes_the_lead_from_one_that_is_slow(
    queue: JobQueue, connection: Redis
) -> None:
    held, own = lead(queue)
    assert done(queue, help_out(queue)) == "done"
    for _ in range(3):  # seconds
        assert claim(queue, "helper", waits=True) == []
        assert queue.renew([held, own]) == ([], [])
    overtaking = Claim("helper")
    for _ in range(2):  # a lost reply changes nothing
        batch = queue.claim(overtaking)
        assert batch is not None
        (taken,) = batch.jobs
        assert (taken.id, taken.attempt, taken.strikes) == (JOB, 2, 0)
    assert queue.renew([held, own, taken])[0] == [held, own]
    assert [done(queue, own), finish(queue, held, succeeded(held))] == ["stale", "stale"]
    with pytest.raises(Stale):
        next_of(queue, held)
    assert claim(queue, "lead") == [], "the shard is not given to others before its new lead has asked"

    shard = next_of(queue, taken, worker="helper")
    assert (shard.id, shard.attempt) == (f"{JOB}:0", 2)
    assert done(queue, shard) == "done"
    assert isinstance(queue.claim_shard(Claim("helper"), taken, FOREVER), list), "what was done stays"
    assert finish(queue, taken, succeeded(taken)) == "done"
    assert of_shards(connection) == []
    assert not connection.exists(f"{keys.RING}led")
    events = [(event.event, event.attempt, event.reason) for event in queue.events(JOB) if event.event != "progress"]
    assert events == [
        ("queued", 0, None),
        ("running", 1, None),
        ("queued", 1, "its worker was slow: another one leads it"),
        ("running", 2, None),
        ("succeeded", 2, None),
    ]


def test_a_slow_lead_does_not_count_among_the_claims_of_a_job(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(shards=2))
    connection.hset(keys.job_key(JOB), "attempt", MAX_ATTEMPTS - 2)
    next_of(queue, take(queue, worker="lead"))
    done(queue, help_out(queue))
    delay(connection)
    taken = take(queue, worker="helper")
    assert finish(queue, taken, how="returned", reason="x") == "queued", "one claim is left"


@pytest.mark.parametrize(
    "why",
    [
        "quick",
        "alone",
        "own",
        "merging",
        "open",
        "kind",
        "canceled",
        "pausing",
        "late",
        "company",
        "slow",
    ],
)
def test_a_lead_keeps_its_job(queue: JobQueue, connection: Redis, why: str) -> None:
    """It has not taken long, nobody else is through with a shard, others find shards, and so on."""
    queue.enqueue(request(shards=3 if why in ("open", "own") else 2, backend="gpu" if why == "kind" else "auto"))
    held = take(queue, worker="lead")
    own = next_of(queue, held)
    wish = Claim("helper", gpu=True)
    if why == "own":
        done(queue, own)
        own = next_of(queue, held)
        assert take(queue, f"{JOB}:2", "other").id == f"{JOB}:2"
    elif why != "alone":
        shard = take(queue, f"{JOB}:1", "helper")
        if why == "slow":
            delay(connection, shard.id, 1)
        done(queue, shard)
    delay(connection, own.id, {"quick": 2, "slow": 4}.get(why, 3))
    match why:
        case "alone":
            assert take(queue, f"{JOB}:1", "other").id == f"{JOB}:1"
        case "merging":
            done(queue, own)
        case "open":
            wish = Claim("helper", gpus=("another",))  # to which it leaves what is open
        case "kind":
            wish = Claim("helper", gpu=False)
        case "canceled":
            queue.cancel(JOB)
        case "pausing":
            queue.pause(JOB)
        case "late":
            connection.hset(keys.job_key(JOB), "deadline", 1.0)
        case "company":
            wish = Claim("helper", only="k", items=2, bytes=10)
    assert queue.claim(wish) is None
    assert (queue.renew([held])[0] == [held]) == (why == "canceled")


def test_a_job_is_taken_from_two_leads_and_from_no_third(queue: JobQueue, connection: Redis) -> None:
    """A shard that is slow on three workers is slow on all."""
    held, _ = lead(queue, 3)
    for shard in [help_out(queue, "helper"), help_out(queue, "another")]:
        done(queue, shard)
    for worker in ("helper", "another"):
        delay(connection)
        held = take(queue, worker=worker)
        assert next_of(queue, held, worker=worker).id == f"{JOB}:0"
    delay(connection)
    assert claim(queue, "lead") == []
    assert queue.renew([held])[0] == []


def test_a_worker_without_a_gpu_takes_the_lead_from_one_whose_gpu_is_slow(queue: JobQueue, connection: Redis) -> None:
    """It leaves jobs to GPUs as long as these are predicted to be quicker; this one was not."""
    lead(queue)
    done(queue, help_out(queue))
    delay(connection)
    assert claim(queue, "helper", gpus=("lead",)) == [JOB]


# A Redis that is full.


def test_a_full_redis_takes_the_end_of_a_shard_and_gives_the_next(queue: JobQueue, connection: Redis) -> None:
    held, own = lead(queue, 4)
    shard = help_out(queue)
    with full(connection):
        assert queue.renew([held, shard, own]) == ([], [])
        assert [done(queue, shard), done(queue, own)] == ["done", "done"]
        shard, own = help_out(queue), next_of(queue, held)
        assert finish(queue, shard, how="returned", reason="x") == "queued"
        assert [done(queue, own), done(queue, next_of(queue, held))] == ["done", "done"]
        assert isinstance(queue.claim_shard(Claim("lead"), held, FOREVER), list)
        assert finish(queue, held, succeeded(held)) == "done"
    assert of_shards(connection) == []


# Others beside.


def test_an_heir_of_a_canceled_wide_job_has_its_own_shards(queue: JobQueue, connection: Redis) -> None:
    queue.enqueue(request(shards=2), None, "digest")
    queue.enqueue(request(2, shards=3), None, "digest")
    held = take(queue, worker="lead")
    next_of(queue, held)
    done(queue, help_out(queue))
    progress = [event.progress for event in queue.events("job_0002") if event.event == "progress"]
    assert progress == [0.5], "the follower hears of it"
    queue.cancel(JOB)
    assert of_shards(connection) == []
    heir = take(queue, "job_0002", worker="lead")
    assert next_of(queue, heir).id == "job_0002:0"
    record = queue.get("job_0002")
    assert record is not None
    assert (record.state, record.progress) == (State.RUNNING, None)


def test_a_clock_that_jumped_takes_no_shard_from_a_worker(queue: JobQueue, connection: Redis) -> None:
    held, _ = lead(queue)
    shard = help_out(queue)
    lapse(connection, shard.id)
    queue.reap([], judge_leases=False, jumped=True)
    assert queue.renew([held, shard])[0] == []
    assert done(queue, shard) == "done"


def test_a_shard_that_ended_three_attempts_is_left_to_the_lead(queue: JobQueue) -> None:
    held, _ = lead(queue)
    for number in range(3):
        assert finish(queue, help_out(queue, f"helper_{number}"), how="returned", reason="x") == "queued"
    assert claim(queue, "helper_3") == []
    assert next_of(queue, held).id == f"{JOB}:1"
