"""Each live worker has a small number of its own."""

import signal
from random import Random
from threading import Thread

import pytest
from redis import Redis

from tests.workers.conftest import Desk
from warpdesk_server.workers.queue import slots
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.slots import Slot


def taken(connection: Redis, name: str) -> Slot:
    slot = Slot(connection, name)
    slot.keep()
    return slot


def test_a_worker_takes_the_smallest_number_that_is_free_and_keeps_it(connection: Redis) -> None:
    first, second, third = (taken(connection, name) for name in ("w0", "w1", "w2"))
    assert (first.number, second.number, third.number) == (0, 1, 2)
    first.give_back()
    for slot in (third, second):
        slot.keep()
    assert (first.number, second.number, third.number) == (None, 1, 2)
    assert taken(connection, "w3").number == 0
    assert taken(connection, "w4").number == 3


def test_a_silent_workers_number_is_free_when_its_time_is_over(
    connection: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "TTL", 0.02)
    dead = taken(connection, "dead")
    monkeypatch.undo()
    while connection.exists("warpdesk:slot:0"):
        pass
    heir = taken(connection, "heir")
    assert heir.number == dead.number == 0
    assert 0 < connection.pttl("warpdesk:slot:0") <= slots.TTL * 1000
    dead.keep()  # it was only slow
    heir.keep()
    assert (heir.number, dead.number) == (0, 1)


def test_nobody_gives_back_what_is_another_workers_by_now(connection: Redis) -> None:
    slow = taken(connection, "slow")
    connection.delete("warpdesk:slot:0")
    heir = taken(connection, "heir")
    slow.give_back()
    assert taken(connection, "third").number == 1
    assert connection.get("warpdesk:slot:0") == b"heir"
    assert heir.number == 0


def test_the_same_question_again_after_a_lost_reply_has_the_same_answer(connection: Redis) -> None:
    unheard = taken(connection, "w0")
    unheard.number = None
    unheard.keep()
    assert unheard.number == 0
    unheard.give_back()
    assert not connection.keys("warpdesk:slot:*")


def test_workers_that_come_at_once_and_an_emptied_redis_make_no_two_of_one_number(redis_url: str) -> None:
    with connect(redis_url) as connection:
        every = [Slot(connection, f"w{number}") for number in range(8)]

        def keep(slot: Slot, draw: Random) -> None:
            for _ in range(20):
                slot.keep()
                if draw.random() < 0.1:
                    connection.flushdb()

        threads = [Thread(target=keep, args=(slot, Random(seed))) for seed, slot in enumerate(every)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for slot in every:
            slot.keep()
        assert len({slot.number for slot in every}) == 8
        assert all(slot.number is not None and slot.number < 8 for slot in every)


def test_a_worker_reports_its_slot_and_frees_it_as_it_stops(desk: Desk, connection: Redis) -> None:
    first, second = desk.start_worker(), desk.start_worker()
    assert first is not None
    assert second is not None
    assert (first.slot, second.slot) == (0, 1)
    desk.workers[0].send_signal(signal.SIGTERM)
    assert desk.workers[0].wait(60) == 0
    assert connection.keys("warpdesk:slot:*") == [b"warpdesk:slot:1"]
    third = desk.start_worker()
    assert third is not None
    assert third.slot == 0
