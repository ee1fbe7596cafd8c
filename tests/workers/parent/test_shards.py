"""One job on several real workers: whatever becomes of those that help, and of the lead, the answer has its bytes."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rq.command import send_stop_job_command

from tests.workers.conftest import Desk, alive
from warpdesk.models import State
from warpdesk_server.workers.queue.records import JobRecord

UNITS = 6


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "place"
    made.mkdir()
    return made


def start(desk: Desk, count: int, operations: str = "PIECES") -> None:
    for _ in range(count):
        desk.start_worker(WARPDESK_OPERATIONS=f"tests.workers.operations:{operations}", WARPDESK_TAKES="all")


def submit(desk: Desk, place: Path, hold: Sequence[int] = (), **fields: object) -> str:
    """A job of which each of its six values is a shard, and some wait until they are let go."""
    for value in hold:
        (place / f"hold.{value}").touch()
    inputs = {"values": desk.array(range(UNITS))}
    given = {"shards": UNITS, "checkpoint_bytes": 20_000, "params": {"place": str(place)}, **fields}
    return desk.submit("pieces", inputs, **given)


def begun(place: Path) -> dict[int, set[int]]:
    """The processes that began with each value."""
    found: dict[int, set[int]] = {}
    for file in place.glob("begun.*"):
        _, value, pid = file.name.split(".")
        found.setdefault(int(value), set()).add(int(pid))
    return found


def let_go(place: Path) -> None:
    for file in place.glob("hold.*"):
        file.unlink()


def require_its_bytes(desk: Desk, record: JobRecord) -> None:
    assert record.state is State.SUCCEEDED, record
    assert record.result is not None
    doubled = np.load(desk.store.result(record.result) / "doubled.npy")
    assert doubled.tolist() == [2.0 * value for value in range(UNITS)]
    desk.until(lambda: desk.store.checkpointed() == [], "the files of its shards are left")
    left = list(desk.queue._redis.scan_iter(f"warpdesk:job:{record.request.id}:*"))
    assert left == [], "something of its shards is left in Redis"
    assert desk.queue._redis.zcard("warpdesk:leases") == 0


def test_workers_that_have_nothing_else_to_do_take_shards_of_a_job(desk: Desk, place: Path) -> None:
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS))
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert len(set.union(*begun(place).values())) == 2
    assert all(len(pids) == 1 for pids in begun(place).values()), "each shard is computed once"
    assert record.provenance is not None
    assert (record.provenance.backend, record.provenance.shards) == ("cpu", {"cpu": UNITS})
    progress = [event.progress for event in desk.queue.events(job_id) if event.event == "progress"]
    assert progress == pytest.approx([number / UNITS for number in range(1, UNITS + 1)], abs=1e-3)


def test_one_worker_alone_computes_all_shards_of_a_job(desk: Desk, place: Path) -> None:
    start(desk, 1)
    require_its_bytes(desk, desk.wait(submit(desk, place)))
    assert sorted(begun(place)) == list(range(UNITS))


def test_a_job_that_waits_goes_before_the_shards_of_another(desk: Desk, place: Path) -> None:
    """The second worker takes the short job as soon as its shard is done."""
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS), timeout=120.0)
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    quick = desk.submit()
    (place / f"hold.{max(begun(place))}").unlink()  # the lead has the first
    assert desk.doubled(desk.wait(quick)) == [2.0, 4.0, 6.0]
    assert set(begun(place)) <= {0, 1, 2}, "the helper did not take another shard before"
    let_go(place)
    require_its_bytes(desk, desk.wait(job_id))


def test_a_helper_that_dies_costs_its_shard_and_the_job_no_strike(desk: Desk, place: Path) -> None:
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS))
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    lead, helper = _workers(desk, job_id)
    _kill(helper)
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert (record.attempt, record.strikes) == (1, 0)
    assert lead.poll() is None


def test_a_lead_that_dies_costs_the_shard_that_it_computes(desk: Desk, place: Path) -> None:
    """Shards that are done are not computed again, and the helper's goes on meanwhile."""
    start(desk, 2)
    job_id = submit(desk, place, hold=range(2, UNITS))
    desk.until(lambda: set(begun(place)) >= {0, 1, 2, 3}, "nobody helped")
    lead, _ = _workers(desk, job_id)
    _kill(lead)
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert (record.attempt, record.strikes) == (2, 0)
    twice = [value for value, pids in begun(place).items() if len(pids) > 1]
    assert len(twice) <= 1, "only the lead's last one is begun again"


def test_a_shard_that_kills_a_helper_is_left_to_the_lead(desk: Desk, place: Path) -> None:
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS))
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    (place / f"kill.{max(begun(place))}").touch()  # the lead has the first
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert (record.attempt, record.strikes) == (1, 0)
    (twice,) = [pids for pids in begun(place).values() if len(pids) > 1]
    assert twice & begun(place)[0], "it was the lead that computed it"


def test_a_shard_that_kills_the_lead_is_a_strike_against_the_job(desk: Desk, place: Path) -> None:
    start(desk, 1)
    job_id = submit(desk, place)
    (place / "kill.3").touch()
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert (record.attempt, record.strikes) == (2, 1)
    assert all(len(pids) == 1 for value, pids in begun(place).items() if value < 3), "what was done stays"


def test_a_slow_helper_is_overtaken(desk: Desk, place: Path) -> None:
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS))
    slow = _let_go_but_for_the_helpers(desk, place)
    desk.until(lambda: len(begun(place)[slow]) == 2, "the lead leaves it to the slow one")
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert (record.attempt, record.strikes) == (1, 0)


def test_a_slow_lead_is_overtaken(desk: Desk, place: Path) -> None:
    """The helper that has computed all other shards computes the lead's last one too, and merges."""
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS))
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    lead, _ = _workers(desk, job_id)
    for value in range(1, UNITS):
        (place / f"hold.{value}").unlink()
    desk.until(lambda: len(begun(place)[0]) == 2, "the helper leaves it to the slow one")
    assert lead is not _workers(desk, job_id)[0]
    (slow,) = begun(place)[0] - begun(place)[1]
    desk.until(lambda: not alive(slow), "the process that was slow goes on")
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert (record.attempt, record.strikes) == (2, 0)
    twice = [value for value, pids in begun(place).items() if len(pids) > 1]
    assert twice == [0], "what was done stays"
    reasons = [event.reason for event in desk.queue.events(job_id) if event.event == "queued"]
    assert reasons == [None, "its worker was slow: another one leads it"]
    assert lead.poll() is None


def test_a_gpu_and_a_cpu_compute_shards_of_one_job(desk: Desk, place: Path) -> None:
    pieces = {"WARPDESK_OPERATIONS": "tests.workers.operations:PIECES", "WARPDESK_TAKES": "all"}
    desk.start_worker(**pieces, WARPDESK_DEVICE="tests.workers.device:PaperDevice")
    desk.start_worker(**pieces)
    job_id = submit(desk, place, hold=range(UNITS))
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert record.provenance is not None
    assert record.provenance.shards is not None
    assert set(record.provenance.shards) == {"cpu", "gpu"}
    assert sum(record.provenance.shards.values()) == UNITS


def test_a_job_that_insists_on_a_gpu_is_helped_by_gpus_alone(desk: Desk, place: Path) -> None:
    pieces = {"WARPDESK_OPERATIONS": "tests.workers.operations:PIECES", "WARPDESK_TAKES": "all"}
    desk.start_worker(**pieces, WARPDESK_DEVICE="tests.workers.device:PaperDevice")
    desk.start_worker(**pieces)
    record = desk.wait(submit(desk, place, backend="gpu"))
    require_its_bytes(desk, record)
    assert record.provenance is not None
    assert record.provenance.shards == {"gpu": UNITS}


def test_a_cancel_stops_all_who_compute_a_job(desk: Desk, place: Path) -> None:
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS))
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    pids = set.union(*begun(place).values())
    assert desk.queue.cancel(job_id) is State.CANCELED
    desk.until(lambda: not any(map(alive, pids)), "it is computed on")
    assert desk.queue._redis.zcard("warpdesk:leases") == 0
    let_go(place)
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]
    desk.until(lambda: desk.store.checkpointed() == [], "the files of its shards are left")


def test_a_job_ends_at_its_time_limit_however_many_shards_are_done(desk: Desk, place: Path) -> None:
    start(desk, 1)
    record = desk.wait(submit(desk, place, hold=[4], timeout=2.0))
    assert record.error is not None
    assert (record.state, record.error.code) == (State.FAILED, "timeout")
    let_go(place)
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]


def test_a_lead_that_is_drained_gives_the_job_back_after_a_shard(desk: Desk, place: Path) -> None:
    start(desk, 1)
    job_id = submit(desk, place, hold=[2])
    desk.until(lambda: 2 in begun(place), "it does not begin")
    desk.workers[0].send_signal(signal.SIGTERM)
    let_go(place)
    assert desk.workers[0].wait(30) == 0
    start(desk, 1)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert all(len(pids) == 1 for pids in begun(place).values()), "no shard is computed twice"


def test_arrays_of_a_shard_that_cannot_be_read_are_computed_again(desk: Desk, place: Path) -> None:
    start(desk, 1)
    job_id = submit(desk, place, hold=[5])
    desk.until(lambda: 5 in begun(place), "it does not begin")
    file = desk.home / "store" / "checkpoints" / job_id / "0.1"
    file.write_bytes(file.read_bytes()[:-40])
    let_go(place)
    require_its_bytes(desk, desk.wait(job_id))


def test_a_helper_of_another_release_costs_a_job_no_more_than_its_shards(desk: Desk, place: Path) -> None:
    """Its arrays are not merged with those of the lead, which computes these shards again."""
    start(desk, 1)
    start(desk, 1, "OTHER_PIECES")
    job_id = submit(desk, place, hold=range(UNITS))
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    assert (record.attempt, record.strikes) == (1, 0)
    (lead,) = set.intersection(*begun(place).values())
    twice = [value for value, pids in begun(place).items() if len(pids) > 1]
    assert 0 < len(twice) < UNITS, "and no other"
    assert lead in begun(place)[0]


def test_a_lead_that_rq_stops_while_it_waits_for_the_last_shard_ends_the_job(desk: Desk, place: Path) -> None:
    start(desk, 2)
    job_id = submit(desk, place, hold=[0, 1])
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    _, helper = _workers(desk, job_id)
    held = next(value for value, pids in begun(place).items() if _child(desk, helper) in pids)
    (place / f"hold.{1 - held}").unlink()
    desk.until(lambda: len(begun(place)) == UNITS, "the lead does not go on")
    desk.until(lambda: desk.queue._redis.zcard("warpdesk:leases") == 2, "it computes on")
    send_stop_job_command(desk.queue._redis, job_id, serializer="json")
    assert desk.wait(job_id).state is State.CANCELED
    let_go(place)
    desk.until(lambda: desk.store.checkpointed() == [], "the files of its shards are left")


def test_what_a_helper_writes_after_the_end_of_a_job_does_not_stay(desk: Desk, place: Path) -> None:
    start(desk, 2)
    job_id = submit(desk, place, hold=range(UNITS))
    slow = _let_go_but_for_the_helpers(desk, place)
    desk.until(lambda: len(begun(place)[slow]) == 2, "the lead leaves it to the slow one")
    _, helper = _workers(desk, job_id)
    child = _child(desk, helper)
    os.kill(helper.pid, signal.SIGSTOP)
    os.kill(child, signal.SIGSTOP)
    let_go(place)
    record = desk.wait(job_id)
    require_its_bytes(desk, record)
    os.kill(child, signal.SIGCONT)
    desk.until(lambda: desk.store.checkpointed() == [job_id], "the helper does not write")
    os.kill(helper.pid, signal.SIGCONT)
    require_its_bytes(desk, record)


def _let_go_but_for_the_helpers(desk: Desk, place: Path) -> int:
    """Wait until a helper has a shard, and let all others go; returns its value."""
    desk.until(lambda: len(begun(place)) == 2, "nobody helped")
    slow = max(begun(place))  # the lead has the first
    for value in set(range(UNITS)) - {slow}:
        (place / f"hold.{value}").unlink()
    return slow


def _workers(desk: Desk, job_id: str) -> "tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]":
    """The worker that has the job, and the other one."""
    name = desk.queue._redis.hget(f"warpdesk:job:{job_id}", "worker").decode()
    first, second = desk.workers
    return (first, second) if f"-{first.pid}-" in name else (second, first)


def _child(desk: Desk, worker: "subprocess.Popen[bytes]") -> int:
    """The process that computes for a worker."""
    found = next(report.child_pid for report in desk.queue.workers() if report.pid == worker.pid)
    assert found is not None
    return found


def _kill(worker: "subprocess.Popen[bytes]") -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
