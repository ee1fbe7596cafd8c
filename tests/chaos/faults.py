"""What is done to a service under load. Each fault writes down what it did, and when."""

import os
import random
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.world import Part, World
from warpdesk_server.workers.queue.keys import LEASES

LOOKING = 0.5  # seconds to wait for a worker that has work


@dataclass(frozen=True)
class Kill:
    """A process that was ended, and the attempts its worker held. `at` is in Unix seconds, as Redis counts."""

    what: str  # "child", "parent" or "api"
    at: float
    held: Sequence[tuple[str, int]]  # job and attempt
    shards: int = 0  # that it computed too


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
            held, claims = self._world.held(worker), self._world.claims(worker)
            if claims or time.monotonic() > until:
                break
        what = "child" if len(self._kills) % 2 else "parent"
        at = time.time()
        if what == "parent":
            worker.killed = True
        with suppress(ProcessLookupError):
            os.kill(worker.pid if what == "parent" else child, signal.SIGKILL)
        self._world.history.add("fault", "killer", detail=f"{what} of {worker.name}, which held {len(held)} jobs")
        self._kills.append(Kill(what, at, held, len(claims) - len(held)))


def kill(world: World, part: Part) -> None:
    """SIGKILL for a parent or the API."""
    part.killed = True
    os.kill(part.pid, signal.SIGKILL)
    world.history.add("fault", "killer", detail=part.name)


def largest(world: World) -> tuple[int, str, Part, int]:
    """Of the processes but Redis, the one of the most memory: its number, what and whose it is, and the bytes."""
    processes = {world.api.pid: ("api", world.api)}
    for worker, child in world.able():
        processes |= {worker.pid: ("parent", worker), child: ("child", worker)}
    sizes = {pid: _resident(pid) for pid in processes}
    pid = max(sizes, key=sizes.__getitem__)
    return pid, *processes[pid], sizes[pid]


def kill_the_largest(world: World, least: int, kills: list[Kill]) -> None:
    """SIGKILL for the process of the most memory, if it has at least so many bytes, as by the kernel where a group has
    none left."""
    pid, what, part, size = largest(world)
    if size < least:
        return
    if what != "child":
        part.killed = True
    held, at = world.held(part), time.time()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    sentence = f"{what} of {part.name} with {size >> 20} MiB, which held {len(held)} jobs"
    world.history.add("fault", "out of memory", detail=sentence)
    kills.append(Kill(what, at, held))


def _resident(pid: int) -> int:
    """Bytes of memory that a process has; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


@contextmanager
def outage(world: World, what: str, outages: list[Outage]) -> Iterator[None]:
    """Redis cannot be reached as long as this context."""
    began = time.time()
    world.history.add("fault", "redis", detail=what)
    yield
    world.history.add("fault", "redis", detail="back")
    outages.append(Outage(what, began, time.time()))


def kill_redis(world: World, away: float, outages: list[Outage]) -> None:
    """SIGKILL, and so many seconds later a new process on the same file."""
    assert world.redis.pid is not None
    with outage(world, "killed", outages):
        os.kill(world.redis.pid, signal.SIGKILL)
        world.pause(away)
        assert not world.redis.running
        world.redis.start()


def stop_redis(world: World, seconds: float, outages: list[Outage]) -> None:
    """SIGSTOP, and SIGCONT so many seconds later."""
    pid = world.redis.pid
    assert pid is not None
    with outage(world, "stopped", outages):
        os.kill(pid, signal.SIGSTOP)
        try:
            world.pause(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


def stand_still(world: World, what: str, pid: int, seconds: float, leases_of: Part | None) -> None:
    """SIGSTOP, and SIGCONT so many seconds later; leases of this worker are taken as ended meanwhile."""
    world.history.add("fault", "stopped", detail=what)
    os.kill(pid, signal.SIGSTOP)
    try:
        if leases_of is not None and (claims := world.claims(leases_of)):
            world.connection.zadd(LEASES, dict.fromkeys((name for name, _ in claims), 1.0), xx=True)
        world.pause(seconds)
    finally:
        with suppress(ProcessLookupError):  # who stood still for long may have been given up
            os.kill(pid, signal.SIGCONT)
    world.history.add("fault", "stopped", detail=f"{what} goes on")


def jump(world: World, whose: Sequence[str], ahead: float) -> tuple[str, ...]:
    """From now on the clocks of these processes are ahead by so many seconds, or behind."""
    for name in whose:
        world.clocks[name].set_ahead(ahead)
    world.history.add("fault", "clock", detail=f"{', '.join(whose)}: {ahead:+g} s")
    return tuple(whose)


def cut_off(world: World, how: str, seconds: float, outages: list[Outage]) -> None:
    """For so many seconds connections to Redis are cut and none begins, or ("silent") nothing comes through any."""
    with outage(world, how, outages):
        for link in world.links:
            link.cut() if how == "cut" else link.silence()
        world.pause(seconds)
        for link in world.links:
            link.open()


@dataclass(frozen=True)
class Partition:
    """A worker that Redis could not reach, and the attempts it held then and knew of."""

    worker: str
    held: Sequence[tuple[str, int]]


def partition(world: World, chance: random.Random, partitions: list[Partition], seconds: float | None) -> None:
    """Silence between Redis and one worker that has work, for so many seconds or, where None, until others have its
    jobs: its leases are taken as ended then."""
    until = time.monotonic() + 5
    while True:
        if time.monotonic() > until:
            return
        number = chance.randrange(len(world.workers))
        worker = world.workers[number]
        before = world.held(worker)
        if not before:
            continue
        world.links[number].silence()
        world.pause(0.05)  # what it sent just before has arrived by now, and is not answered
        if held := [claim for claim in world.held(worker) if claim in before]:
            break
        world.links[number].open()
    world.history.add("fault", "network", detail=f"{worker.name}, which holds {len(held)} jobs, is cut off")
    try:
        if seconds is None:
            claims = world.claims(world.workers[number])
            world.connection.zadd(LEASES, dict.fromkeys((name for name, _ in claims), 1.0), xx=True)
            world.until(lambda: not world.held(worker), f"nobody took over from {worker.name}", 60)
        else:
            world.pause(seconds)
    finally:
        world.links[number].open()
    world.history.add("fault", "network", detail=f"{worker.name} is connected again")
    partitions.append(Partition(worker.name, held))


def restart(world: World, part: Part) -> None:
    """SIGTERM, wait for its end, wait until its successor is ready."""
    world.history.add("fault", "deployment", detail=f"{part.name} is to end")
    part.requested = True
    part.process.terminate()
    clean = -signal.SIGTERM if part.name == "api" else 0  # uvicorn ends by the signal once it has stopped
    until = time.monotonic() + 60
    while part.process.poll() is None:  # nothing is started meanwhile: it would be gone from `parts`
        assert time.monotonic() < until, f"{part.name} did not end"
        time.sleep(0.01)
    assert part.process.returncode == clean, f"{part.name} was asked to end and ended {part.process.returncode}"
    world.tend()
    world.until(world.ready, f"the successor of {part.name} did not become ready")


def fail_over(world: World, how: str, seconds: float) -> None:
    """Have another server of the cluster promoted: the primary is killed, stands still, or is split from the others.

    So many seconds after the promotion it is back, and the cluster is waited for. With `replica` one of those is killed
    instead, and nothing is promoted.
    """
    cluster = world.cluster
    assert cluster is not None
    old = cluster.primary()
    world.history.add("fault", "redis", detail=f"{how}, the primary is {old.number}")
    with ExitStack() as over:
        if how == "replica":
            replica = next(machine for machine in cluster.machines if machine is not old)
            cluster.kill(replica)
            over.callback(cluster.start_server, replica)
        elif how == "kill":
            cluster.kill(old)
            over.callback(cluster.start_server, old)
        elif how == "stop":
            assert old.server is not None
            os.kill(old.server.pid, signal.SIGSTOP)
            over.callback(os.kill, old.server.pid, signal.SIGCONT)
        else:
            over.enter_context(cluster.split(old))
        if how != "replica":
            world.until(lambda: cluster.primary() is not old, "no replica was promoted", 60)
            world.history.add("fault", "redis", detail=f"the primary is {cluster.primary().number}")
        world.pause(seconds)
    world.history.add("fault", "redis", detail="back")
    world.until(cluster.whole, "the cluster did not become whole", 60)
