"""Jobs that share a launch: each has its own end, and what one of them does to the child costs the others nothing."""

import time
from typing import Any

from tests.workers.conftest import Desk
from warpdesk.models import State
from warpdesk_server.workers.queue.protocol import Together
from warpdesk_server.workers.queue.records import JobRecord


def together(key: str = "alike", **fields: Any) -> Together:
    return Together(**{"key": key, "items": 64, "bytes": 1 << 20, **fields})


def naps(desk: Desk, *seconds: float, **fields: Any) -> list[str]:
    return [
        desk.submit(
            "nap", params={"seconds": length, "marker": str(desk.marker(f"nap{at}"))}, together=together(), **fields
        )
        for at, length in enumerate(seconds)
    ]


def records(desk: Desk, ids: list[str]) -> list[JobRecord]:
    return [desk.wait(job_id) for job_id in ids]


def started_together(found: list[JobRecord]) -> bool:
    return len({record.started_at for record in found}) == 1


def test_jobs_of_one_key_are_claimed_in_one_step_and_answered_each_by_itself(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        ids = [desk.submit(inputs={"values": desk.array([float(at)])}, together=together()) for at in range(10)]
        other = desk.submit(together=together("another"))
    found = records(desk, ids)
    assert [desk.doubled(record) for record in found] == [[2.0 * at] for at in range(10)]
    assert started_together(found)
    assert [record.provenance.batch_reason for record in found if record.provenance] == ["drained"] * 10
    assert desk.wait(other).started_at != found[0].started_at


def test_a_batch_holds_as_many_jobs_and_bytes_as_it_may(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        few = [desk.submit(together=together("few", items=2)) for _ in range(4)]
        small = [desk.submit(together=together("small", bytes=100), size=40) for _ in range(4)]
    reasons = [
        [record.provenance.batch_reason for record in records(desk, ids) if record.provenance] for ids in (few, small)
    ]
    assert reasons == [["full"] * 4, ["bytes", "bytes", "drained", "drained"]]


def test_a_poisonous_job_is_a_dead_letter_after_three_strikes_and_its_neighbours_succeed_without_one(
    desk: Desk,
) -> None:
    desk.start_worker()
    marks = desk.home / "marks"
    marks.mkdir()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        ids = [
            desk.submit("die", params={"times": 99 if at == 3 else 0, "marker": str(marks)}, together=together())
            for at in range(8)
        ]
    found = records(desk, ids)
    poison = found.pop(3)
    assert (poison.state, poison.strikes, poison.dead) == (State.FAILED, 3, True)
    assert poison.error is not None
    assert poison.error.code == "worker-died"
    assert [(record.state, record.strikes, record.attempt) for record in found] == [(State.SUCCEEDED, 0, 2)] * 7
    assert len(list(marks.iterdir())) == 4  # once in company, three times alone


def test_a_job_that_is_canceled_costs_the_others_of_its_launch_nothing(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        ids = naps(desk, 600.0, 0.0, 0.0)
    desk.napping(desk.marker("nap0"))
    assert desk.queue.cancel(ids[0]) is State.CANCELED
    assert [record.state for record in records(desk, ids)] == [State.CANCELED, State.SUCCEEDED, State.SUCCEEDED]
    assert desk.doubled(desk.wait(desk.submit())) == [2.0, 4.0, 6.0]


def test_a_deadline_that_passes_in_a_launch_costs_the_others_nothing(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        late = naps(desk, 600.0, deadline=time.time() + 3.0)
        others = naps(desk, 0.0, 0.0)
    assert [record.state for record in records(desk, [*late, *others])] == [State.EXPIRED, *[State.SUCCEEDED] * 2]


def test_jobs_of_a_launch_that_takes_too_long_run_alone_next_time(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        ids = naps(desk, 600.0, 0.0, 0.0, timeout=1.0)
    found = records(desk, ids)
    assert [record.state for record in found] == [State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
    assert found[0].error is not None
    assert found[0].error.code == "timeout"
    assert [record.strikes for record in found] == [0, 0, 0]


def test_a_worker_that_stops_gives_back_every_job_of_its_launch(desk: Desk) -> None:
    desk.start_worker(WARPDESK_DRAIN_SECONDS="0.2")
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        ids = naps(desk, 600.0, 600.0)
    desk.napping(desk.marker("nap0"))
    desk.workers[0].terminate()
    assert desk.workers[0].wait(20) == 0
    found = [desk.queue.get(job_id) for job_id in ids]
    assert [(record.state, record.attempt, record.strikes) for record in found if record] == [(State.QUEUED, 1, 0)] * 2
    assert [desk.queue.position(job_id) for job_id in ids] == [0, 1]


def test_another_worker_takes_over_every_job_of_a_killed_ones_launch(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        ids = naps(desk, 5.0, 0.0)
    desk.napping(desk.marker("nap0"))
    desk.workers[0].kill()
    desk.workers[0].wait()
    desk.start_worker()
    assert [(r.state, r.attempt, r.strikes) for r in records(desk, ids)] == [(State.SUCCEEDED, 2, 0)] * 2


def test_an_operation_that_wants_company_waits_for_it_and_no_longer_than_it_said(desk: Desk) -> None:
    desk.start_worker()
    first = desk.submit(together=together("pair", items=2, wait=60.0))
    desk.until(lambda: desk.queue.length() == 0, "it was not claimed")
    second = desk.submit(together=together("pair", items=2, wait=60.0))
    found = records(desk, [first, second])
    assert [record.provenance.batch_reason for record in found if record.provenance] == ["full", "full"]
    alone = desk.wait(desk.submit(together=together("single", items=2, wait=0.2)))
    assert alone.provenance is not None
    assert alone.provenance.batch_reason == "waited"


def test_the_urgent_goes_first(desk: Desk) -> None:
    desk.start_worker()
    with desk.gate() as gate:
        desk.nap("held", gate=gate)
        ids = [desk.submit(priority=priority) for priority in ("research", "batch", "realtime")]
    begun = [record.started_at or 0.0 for record in records(desk, ids)]
    assert begun == sorted(begun, reverse=True)


def test_a_fault_that_may_pass_is_tried_again_after_a_while_and_told(desk: Desk) -> None:
    desk.start_worker(WARPDESK_RETRY_DELAYS="[0.05, 0.05]")
    job_id = desk.submit("hoard")
    record = desk.wait(job_id)
    assert (record.state, record.attempt, record.strikes) == (State.FAILED, 3, 0)
    assert record.error is not None
    assert record.error.code == "out-of-memory"
    events = desk.queue.events(job_id)
    assert [event.event for event in events] == ["queued", "running"] * 3 + ["failed"]
    assert [event.reason is None for event in events if event.event == "queued"] == [True, False, False]
    assert [event.number for event in events] == list(range(1, 8))
