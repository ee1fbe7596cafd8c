"""What is done to a service under load. Each fault writes down what it did, and when."""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.chaos.world import Part, World

LOOKING = 0.5  # seconds to wait for a worker that has work


@dataclass(frozen=True)
class Kill:
    """A process that was ended, and the attempts its worker held. `at` is in Unix seconds, as Redis counts."""

    what: str  # "child" or "parent"
    at: float
    held: Sequence[tuple[str, int]]  # job and attempt


@dataclass(frozen=True)
class Outage:
    """When Redis could not be reached, and when it could again, in Unix seconds."""

    what: str
    began: float
    ended: float


class Killer:
    """Kills one process of a worker at a time, parents and children by turns, that of a worker with work if any has.

    With `spare` it leaves alone whoever is left when fewer workers than that are able to work.
    """

    def __init__(self, world: World, seed: int, kills: list[Kill], spare: int = 1) -> None:
        self._spare = spare
        self._kills = kills
        self._world = world
        self._chance = random.Random(seed)

    def strike(self) -> None:
        """SIGKILL for the parent or the child of a worker that is able to work."""
        able = self._world.able()
        if len(able) < self._spare:
            return
        until = time.monotonic() + LOOKING
        while True:
            worker, child = self._chance.choice(able)
            held = self._world.held(worker)
            if held or time.monotonic() > until:
                break
        what = "child" if len(self._kills) % 2 else "parent"
        at = time.time()
        if what == "parent":
            worker.killed = True
        with suppress(ProcessLookupError):
            os.kill(worker.pid if what == "parent" else child, signal.SIGKILL)
        self._world.history.add("fault", "killer", detail=f"{what} of {worker.name}, which held {len(held)} jobs")
        self._kills.append(Kill(what, at, held))


def kill_redis(world: World, away: float) -> Outage:
    """SIGKILL, and so many seconds later a new process on the same file."""
    assert world.redis.pid is not None
    began = time.time()
    world.history.add("fault", "redis", detail="killed")
    os.kill(world.redis.pid, signal.SIGKILL)
    world.pause(away)
    world.redis.start()
    world.history.add("fault", "redis", detail="back")
    return Outage("killed", began, time.time())


@contextmanager
def noted(world: World, what: str, outages: list[Outage]) -> Iterator[None]:
    """An outage as long as this context."""
    began = time.time()
    world.history.add("fault", "redis", detail=what)
    yield
    world.history.add("fault", "redis", detail="back")
    outages.append(Outage(what, began, time.time()))


def stop_redis(world: World, seconds: float, outages: list[Outage]) -> None:
    """SIGSTOP, and SIGCONT so many seconds later."""
    pid = world.redis.pid
    assert pid is not None
    with noted(world, "stopped", outages):
        os.kill(pid, signal.SIGSTOP)
        try:
            world.pause(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


def cut(world: World, seconds: float, outages: list[Outage]) -> None:
    """No connection to Redis for so many seconds."""
    with noted(world, "cut", outages):
        world.cut()
        world.pause(seconds)
        world.mend()


def freeze(world: World, worker: Part, seconds: float) -> None:
    """A worker's host stands still: neither parent nor child notices, others take its jobs over meanwhile."""
    child = dict(world.able()).get(worker)
    world.history.add("fault", "host", detail=f"{worker.name} stands still")
    stopped = [worker.pid, *([] if child is None else [child])]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    world.pause(seconds)
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    world.history.add("fault", "host", detail=f"{worker.name} goes on")


def restart(world: World, worker: Part) -> None:
    """SIGTERM, wait for its end, wait until its successor is ready."""
    world.history.add("fault", "deployment", detail=f"{worker.name} is to end")
    worker.asked = True
    worker.process.terminate()
    world.until(lambda: worker.process.poll() is not None, f"{worker.name} did not end", 60)
    assert worker.process.returncode == 0, f"{worker.name} was asked to end and ended {worker.process.returncode}"
    world.tend()
    world.until(world.ready, f"the successor of {worker.name} did not become ready")
