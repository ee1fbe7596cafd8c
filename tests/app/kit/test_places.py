"""Places: who gets one, who waits, and that one owner cannot take all of them from others."""

import asyncio

import pytest

from warpdesk_server.app.kit.places import Places


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Crowd:
    """Requests that take a place and hold it until `leave`."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.served: list[str] = []
        self._leaving: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        """Start requests: `a1` is one of the owner `a`."""
        for name in names:
            self._leaving[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._stay(name))
        await _settle()

    async def _stay(self, name: str) -> None:
        async with self.places.take(name[0]):
            self.served.append(name)
            await self._leaving[name].wait()

    async def leave(self, *names: str) -> None:
        for name in names:
            self._leaving[name].set()
        await _settle()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await _settle()


def test_a_newcomer_has_a_place_at_once_though_another_owner_takes_all_that_it_may() -> None:
    async def main() -> list[str]:
        crowd = Crowd(Places(4, 3))
        await crowd.come("a1", "a2", "a3", "a4", "a5")
        assert crowd.served == ["a1", "a2", "a3"]
        await crowd.come("b1")
        return crowd.served

    assert asyncio.run(main()) == ["a1", "a2", "a3", "b1"]


def test_a_free_place_goes_to_the_owner_who_has_the_fewest_and_in_turn_where_they_have_as_many() -> None:
    async def main() -> list[str]:
        crowd = Crowd(Places(2, 2))
        await crowd.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
        await crowd.leave("a1")
        await crowd.leave("a2")
        await crowd.leave("b1")
        await crowd.leave("c1")
        await crowd.leave("a3", "b2")
        return crowd.served

    assert asyncio.run(main()) == ["a1", "a2", "b1", "a3", "c1", "b2", "a4"]


def test_one_place_is_taken_in_turn_by_owners_who_both_come_again_and_again() -> None:
    async def main() -> list[str]:
        crowd = Crowd(Places(1, 1))
        await crowd.come("a1", "a2", "a3", "b1", "b2")
        for name in ("a1", "a2", "b1", "a3", "b2"):
            await crowd.leave(name)
        return crowd.served

    assert asyncio.run(main()) == ["a1", "a2", "b1", "a3", "b2"]


@pytest.mark.parametrize("given", [False, True])
def test_who_gives_up_leaves_no_place_taken(given: bool) -> None:
    async def main() -> None:
        places = Places(1, 1)
        crowd = Crowd(places)
        await crowd.come("a1", "a2", "b1")
        if given:  # gives up in the same turn of the loop in which it got the place
            crowd._leaving["a1"].set()
            await asyncio.sleep(0)
        await crowd.give_up("a2")
        await crowd.leave("a1")
        assert crowd.served[-1] == "b1"
        await crowd.leave("b1")
        await crowd.come("c1")
        assert crowd.served[-1] == "c1"
        await crowd.leave("c1")
        assert (places.present, places._held, places._waiting, places._free) == ({}, {}, {}, 1)

    asyncio.run(main())


def test_what_is_ahead_of_an_owner_grows_with_its_own_requests_and_not_with_those_of_one_other() -> None:
    places = Places(8, 8)
    places.present.update(a=200, b=3)

    assert [places.ahead(owner) for owner in ("a", "b", "c")] == [203, 7, 2]


def test_requests_that_give_up_as_a_place_is_free_leave_it_to_the_next() -> None:
    async def run() -> None:
        places = Places(1, 1)
        crowd = Crowd(places)
        await crowd.come("a1", "b1", "b2", "b3")
        crowd._tasks["b1"].cancel()
        crowd._leaving["a1"].set()
        await _settle()
        assert crowd._tasks["b1"].cancelled()
        await crowd.leave("b2")
        await crowd.leave("b3")
        assert crowd.served == ["a1", "b2", "b3"]
        assert not places.present

    asyncio.run(run())


def test_a_request_that_gives_up_in_the_step_in_which_it_is_passed_over_ends_as_given_up() -> None:
    async def run() -> None:
        places = Places(1, 1)
        held = places.take("a")
        await held.__aenter__()
        crowd = Crowd(places)
        await crowd.come("b1", "b2", "b3")
        crowd._tasks["b1"].cancel()
        await held.__aexit__(None, None, None)  # before the task of b1 receives its cancel
        with pytest.raises(asyncio.CancelledError):
            await crowd._tasks["b1"]
        await crowd.leave("b2")
        await crowd.leave("b3")
        assert crowd.served == ["b2", "b3"]

    asyncio.run(run())
