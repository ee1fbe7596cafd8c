"""No acknowledged job is lost, none is seen twice, none is answered wrongly, whatever happens to the service.

Each scenario runs a whole service under load, does harm to it, and has the history of what clients saw judged. The
short forms are part of `make test`; `make chaos` runs the long ones, prints what it measured, and with CHAOS_SAVE=1
keeps that in benchmarks/results. CHAOS_JOBS is how many jobs a long one sends.
"""

import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from rq import Worker
from rq.suspension import resume, suspend

from tests.cables import Cable
from tests.chaos.checker import Verdict, check
from tests.chaos.faults import (
    Kill,
    Killer,
    Outage,
    Partition,
    cut_off,
    jump,
    kill,
    kill_redis,
    kill_the_largest,
    largest,
    partition,
    restart,
    stand_still,
    stop_redis,
)
from tests.chaos.history import History
from tests.chaos.load import Load, clean_run
from tests.chaos.measure import attempts, computed_in_shards, recoveries, redeliveries, shown, strikes
from tests.chaos.proxy import Thief, scripts_of
from tests.chaos.workload import Submission, Workload, digest, doubling, poison, release, task
from tests.chaos.world import World
from tests.clocks import HOUR
from tests.conftest import ROOT
from tests.workers.stepping.task import undisturbed
from warpdesk_server.benchmarks import report
from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.keys import job_key
from warpdesk_server.workers.queue.protocol import MAX_STRIKES, Succeeded, digest_of_claim
from warpdesk_server.workers.queue.records import Ending, Held

SAVE = bool(os.environ.get("CHAOS_SAVE"))
JOBS = int(os.environ.get("CHAOS_JOBS", "10000"))
SETTLE_PATIENCE = 180.0  # seconds in which every job must have ended once nothing more is done to the service
SEED = 20261122
GREED = 128 << 20  # bytes of memory that some jobs ask for
# Steps of which every run loses replies.
STEPS = {"ENQUEUE", "CLAIM", "CLAIM_SHARD", "RENEW", "FINISH", "REAP", "CANCEL_AND_CLOSE"}


@dataclass(frozen=True)
class Size:
    """How much of a scenario: jobs, different requests among them, and how often and how long harm is done."""

    name: str
    jobs: int
    kinds: int
    workers: int
    times: int = 1
    every: float = 2.0  # seconds
    long: float = 3.0  # seconds
    spare: int = 1  # kill nobody while fewer workers can work
    outstanding: int = 150
    shared: bool = False
    widths: bool = True  # all that serve know jobs in shards


def short(**values: Any) -> Size:
    return Size(**{"name": "short", "jobs": 100, "kinds": 210, "workers": 4, "shared": True, **values})


def sizes(short: Size, long: Size) -> Any:
    each = (
        pytest.param(short, id="short", marks=pytest.mark.timeout(400)),
        pytest.param(long, id="long", marks=[pytest.mark.chaos, pytest.mark.timeout(7200)]),
    )
    return pytest.mark.parametrize("size", each)


@dataclass
class Run:
    """A service, its clients, and what is found of both."""

    world: World
    history: History
    load: Load
    clean: dict[str, str]
    size: Size
    of_another_release: dict[str, str] = field(default_factory=dict)  # as `clean`
    facts: dict[str, Any] = field(default_factory=dict)

    def work_off(self, harm: Callable[[], None] = lambda: None, every: float = 0.1) -> None:
        """Until the load is done, doing harm every so many seconds."""
        deadline, due = time.monotonic() + SETTLE_PATIENCE, time.monotonic() + every
        settled = -1
        while not self.load.done:
            if self.load.settled != settled:
                settled, deadline = self.load.settled, time.monotonic() + SETTLE_PATIENCE
            if self.load.errors or time.monotonic() > deadline:
                break
            if time.monotonic() >= due:
                due = time.monotonic() + every
                harm()
            self.world.pause(0.05)

    def back_at_work(self, outages: Sequence[Outage]) -> dict[str, str]:
        """How long after each outage the first job was done."""
        seconds = recoveries(self.world.queue, outages, self.load.jobs)
        return {f"seconds from Redis to the first job done: {kind}": figure for kind, figure in shown({"all": seconds})}

    def judge(self, scenario: str) -> Verdict:
        """After everything is whole again: read all once more, have it judged, print and keep what was measured."""
        assert self.load.errors == []
        self.world.until(self.world.ready, "the service did not recover")
        self.load.audit()
        verdict = check(self.history.entries(), self.clean, self.of_another_release)
        tries = attempts(self.world.queue, self.load.jobs)
        self.facts = {
            "acknowledged": len(self.load.jobs),
            "lost": len(verdict.lost),
            "seen twice": len(verdict.duplicated),
            "changed": len(verdict.changed),
            "wrong": len(verdict.wrong),
            "unexpected": len(verdict.unexpected),
            "jobs by attempts": tries,
            "jobs in shards": computed_in_shards(self.world.queue, self.load.jobs),
            "late finishes refused": self.world.log().count("came too late"),
            "processes that ended by themselves": len(self.world.own_exits),
            "workers of those with 0": sum(code == 0 for name, code in self.world.own_exits if name != "api"),
            **self.facts,
        }
        sys.stdout.write(f"\n{scenario}, {self.size.name}\n")
        sys.stdout.write("".join(f"  {name}: {value}\n" for name, value in self.facts.items()))
        if SAVE:
            report.save(f"chaos_{scenario}", [{"fact": name, "value": value} for name, value in self.facts.items()])
        assert self.load.errors == []
        assert verdict.right, f"{verdict}\nthe history is {self.history.path}"
        assert self.world.own_exits == []
        return verdict


class Worlds:
    """The short scenarios share a service, which each leaves as it found it; a long one has its own."""

    def __init__(self) -> None:
        self._shared: tuple[World, dict[str, str]] | None = None

    @contextmanager
    def chaos(
        self,
        size: Size,
        folder: Path,
        *,
        first: Sequence[Submission] = (),
        enough: Callable[[], bool] = lambda: True,
        proxied: bool = False,
        clocked: bool = False,
        servers: Path | None = None,
        sources: Path = ROOT,
        cables: Sequence[Cable] = (),
        before: Callable[[World], None] = lambda world: None,
        among: Callable[[Iterator[Submission]], Iterator[Submission]] = lambda submissions: submissions,
    ) -> Iterator[Run]:
        """`first` are sent before all others, which `among` may change; `before` is called with the service."""
        workload = Workload(folder.name, SEED, size.kinds, size.widths)
        with History(folder / "history.jsonl") as history:
            world, clean = self._world(size, history, workload, proxied, clocked, servers, sources, cables)
            try:
                before(world)
                submissions = chain(first, among(workload.submissions()))
                with Load(world.url, history, submissions, size.jobs, size.outstanding, enough, world.token) as load:
                    yield Run(world, history, load, dict(clean), size)
            except BaseException:
                self._shared = None
                world.close(failed=True)
                raise
            if not size.shared:
                world.close()

    def _world(
        self,
        size: Size,
        history: History,
        workload: Workload,
        proxied: bool,
        clocked: bool,
        servers: Path | None,
        sources: Path,
        cables: Sequence[Cable],
    ) -> tuple[World, dict[str, str]]:
        if size.shared and self._shared is not None:
            self._shared[0].attend(history)
            return self._shared
        world = World(
            history,
            workers=size.workers,
            proxied=proxied or size.shared,
            clocked=clocked,
            servers=servers,
            sources=sources,
            cables=cables,
        )
        world.start()
        try:
            made = world, clean_run(world.url, history, workload.requests, world.token)
        except BaseException:
            world.close(failed=True)  # else its threads would keep pytest from ending
            raise
        if size.shared:
            self._shared = made
        return made

    def close(self) -> None:
        if self._shared is not None:
            self._shared[0].close()


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    made = Worlds()
    yield made
    made.close()


@sizes(
    short(jobs=570, times=10, every=0.5, spare=3),
    Size(f"{JOBS} jobs", jobs=JOBS, kinds=700, workers=4, every=2.0),
)
def test_killed_parents_and_children_cost_no_job(worlds: Worlds, size: Size, tmp_path: Path) -> None:
    kills: list[Kill] = []
    with worlds.chaos(size, tmp_path, enough=lambda: len(kills) >= size.times) as run:
        killer = Killer(run.world, SEED, kills, size.spare)
        run.work_off(killer.strike, size.every)
        seconds = redeliveries(run.world.queue, kills)
        run.facts = {
            "kills": dict(Counter(kill.what for kill in kills)),
            "jobs whose worker was killed": sum(len(kill.held) for kill in kills),
            "shards whose worker was killed": sum(kill.shards for kill in kills),
            **{f"seconds until a job goes on after the death of a {kind}": figure for kind, figure in shown(seconds)},
            "jobs with strikes": len(strikes(run.world.queue, run.load.jobs)),
        }
        run.judge("kills")
        assert {kill.what for kill in kills} == {"parent", "child"}


@sizes(
    short(jobs=60, times=4, every=1.5),
    Size("50 kills", jobs=JOBS // 10, kinds=700, workers=4, times=50, every=2.0),
)
def test_tasks_among_other_jobs_have_the_bytes_of_an_undisturbed_run(
    worlds: Worlds, size: Size, tmp_path: Path
) -> None:
    """Whoever runs a task is killed, the parent or the child, or the network between it and Redis is silent."""
    tasks = [task(turn, 50, 0.1) for turn in range(8)]
    ends: list[str] = []

    def among(submissions: Iterator[Submission]) -> Iterator[Submission]:
        for number, one in enumerate(submissions):
            yield one
            if number % 16 == 0:
                turn = number // 16
                yield Submission(1_000_000 + turn, tasks[turn % 8], key=f"{tmp_path.name}-task-{turn}")

    with worlds.chaos(
        size,
        tmp_path,
        enough=lambda: len(ends) >= size.times,
        proxied=True,
        among=among,
    ) as run:
        run.clean.update(
            {
                one.name: digest({"numbers": undisturbed(one.body["params"], one.body["seed"]), "steps": 50})
                for one in tasks
            }
        )

        def harm() -> None:
            found = [report for report in run.world.reports().values() if report.takes == "tasks"]
            busy = [report for report in found if report.state == "busy" and report.child_pid is not None]
            if not busy or len(ends) >= size.times:
                return
            victim = busy[len(ends) % len(busy)]
            what = ("child", "parent", "worker", "network")[len(ends) % 4]
            run.world.history.add("fault", "killer", detail=f"{what} of {victim.name}")
            ends.append(what)
            if what == "network":
                beside = [place for place, part in enumerate(run.world.workers) if part.pid == victim.started_by]
                for place in beside:
                    run.world.links[place].silence()
                run.world.pause(size.long)
                for place in beside:
                    run.world.links[place].open()
                return
            pid = {"child": victim.child_pid, "parent": victim.pid, "worker": victim.started_by}[what]
            assert pid is not None
            for part in run.world.workers:
                part.killed = part.killed or part.pid == pid
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        run.work_off(harm, size.every)
        assert "begins again" not in run.world.log(), "each goes on from a checkpoint"
        run.facts = {"kills of workers of tasks": dict(Counter(ends))}
        run.judge("tasks")


@sizes(
    short(jobs=150, times=2, every=1.5, long=0.5),
    Size(f"{JOBS} jobs", jobs=JOBS, kinds=700, workers=4, times=20, every=4.0, long=1.0),
)
def test_a_killed_redis_costs_no_job(worlds: Worlds, size: Size, tmp_path: Path) -> None:
    outages: list[Outage] = []
    with worlds.chaos(size, tmp_path, enough=lambda: len(outages) >= size.times) as run:

        def harm() -> None:
            if len(outages) < size.times:
                kill_redis(run.world, size.long, outages)

        run.work_off(harm, size.every)
        run.facts = {"kills of Redis": len(outages), **run.back_at_work(outages)}
        run.judge("redis-kill")


@sizes(
    short(jobs=100, long=3.0),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, long=30.0),
)
def test_a_redis_that_stands_still_costs_no_job(worlds: Worlds, size: Size, tmp_path: Path) -> None:
    outages: list[Outage] = []
    with worlds.chaos(size, tmp_path, enough=lambda: bool(outages)) as run:
        run.work_off(once(lambda: stop_redis(run.world, size.long, outages)), size.every)
        run.facts = {"seconds Redis stood still": size.long, **run.back_at_work(outages)}
        run.judge("redis-stop")


@sizes(
    short(jobs=100, long=3.0),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, long=60.0),
)
@pytest.mark.parametrize("how", ["cut", "silent"])
def test_a_network_that_is_away_costs_no_job(worlds: Worlds, size: Size, how: str, tmp_path: Path) -> None:
    outages: list[Outage] = []
    with worlds.chaos(size, tmp_path, enough=lambda: bool(outages), proxied=True) as run:
        run.work_off(once(lambda: cut_off(run.world, how, size.long, outages)), size.every)
        run.facts = {"seconds without a connection": size.long, **run.back_at_work(outages)}
        run.judge(f"network-{how}")


@sizes(
    short(jobs=60, times=2),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, times=10, long=20.0),
)
def test_a_worker_that_was_given_up_cannot_finish_what_another_took_over(
    worlds: Worlds, size: Size, tmp_path: Path
) -> None:
    partitions: list[Partition] = []
    with worlds.chaos(size, tmp_path, enough=lambda: len(partitions) >= size.times, proxied=True) as run:
        chance = random.Random(SEED)

        def harm() -> None:
            # A short one does not wait for leases to end.
            partition(run.world, chance, partitions, None if size.shared else size.long)

        run.work_off(harm, size.every)
        verdict = run.judge("partitions")
        late = [claim for each in partitions for claim in each.held]
        assert verdict.duplicated == {}
        assert late

        def not_refused() -> list[tuple[str, int]]:
            """Attempts that nobody ended when they came back: their finish is too late, or gives back what waits."""
            log = run.world.log()
            return [
                (name, attempt)
                for name, attempt in late
                if not re.search(rf"{name} attempt {attempt}( came too late|: .*; the job is given back)", log)
            ]

        run.world.until(lambda: not not_refused(), "late finishes were not refused")


@sizes(
    short(jobs=120, every=5),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, every=12),
)
def test_replies_that_never_arrive_cost_no_job(worlds: Worlds, size: Size, tmp_path: Path) -> None:
    names = scripts_of(scripts)
    thieves: list[Thief] = []
    attempts: Counter[str] = Counter()

    def taken() -> Counter[str]:
        return sum((thief.taken for thief in thieves), Counter())

    with worlds.chaos(size, tmp_path, enough=lambda: set(taken()) >= STEPS, proxied=True) as run:
        for number, link in enumerate(run.world.links):
            thieves.append(Thief(SEED + number, names, int(size.every)))
            link.robbed(thieves[-1])
        run.work_off()
        for link in run.world.links:
            link.robbed(None)
        attempts = sum((thief.attempts for thief in thieves), Counter())
        run.facts = {
            f"replies lost of {name}": f"{count} of {attempts[name]}" for name, count in sorted(taken().items())
        }
        run.judge("reply-drop")


@sizes(
    short(jobs=64),
    Size("64 jobs", jobs=64, kinds=70, workers=4),
)
def test_a_poison_job_is_given_up_after_three_strikes_and_its_neighbours_have_none(
    worlds: Worlds, size: Size, tmp_path: Path
) -> None:
    neighbours = [doubling(f"neighbour {turn}", [turn + 1.0, 0.5]) for turn in range(size.jobs - 1)]
    together = [Submission(at, request) for at, request in enumerate(neighbours, 2)]
    together.insert(size.jobs // 2, Submission(1, poison(2), ends=("failed: worker-died",)))
    answers = {f"neighbour {turn}": digest({"doubled": [2 * turn + 2.0, 1.0]}) for turn in range(size.jobs - 1)}
    with worlds.chaos(size, tmp_path, first=together, before=suspended) as run:
        run.clean.update(answers)
        run.world.until(lambda: run.world.queue.length() == size.jobs, "the jobs were not sent")
        resume(run.world.connection)
        run.work_off()
        run.judge("poison")
        (dead,) = [letter for letter in run.world.queue.dead_letters(100) if letter.request.id in run.load.jobs]
        assert (dead.strikes, dead.request.inputs != {}) == (3, True)
        assert strikes(run.world.queue, run.load.jobs) == {dead.request.id: 3}


@sizes(
    short(jobs=150, times=2, every=1.0),
    Size("2.5 minutes", jobs=JOBS // 5, kinds=700, workers=4, times=5, every=30.0),
)
def test_a_rolling_restart_costs_no_job_and_strikes_none(worlds: Worlds, size: Size, tmp_path: Path) -> None:
    restarted: list[str] = []
    with worlds.chaos(size, tmp_path, enough=lambda: len(restarted) >= 2 * size.times) as run:

        def harm() -> None:
            """As a deployment does: a worker, and the API, each told to end and replaced."""
            if len(restarted) < 2 * size.times:
                turn = len(restarted) // 2 % len(run.world.workers)
                for part in (run.world.workers[turn], run.world.api):
                    restart(run.world, part)
                    restarted.append(part.name)

        began = time.monotonic()
        run.work_off(harm, size.every)
        counts = Counter(entry.what for entry in run.history.entries())
        run.facts = {
            "workers restarted": len(restarted) - restarted.count("api"),
            "times the API was restarted": restarted.count("api"),
            "seconds between two": size.every,
            "seconds of load": round(time.monotonic() - began),
            "refused, to be sent again": counts["refused"],
            "requests without an answer": counts["unknown"],
        }
        run.judge("rolling-restart")
        assert strikes(run.world.queue, run.load.jobs) == {}


@sizes(
    short(jobs=150, times=2, every=2.0),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, times=20, every=4.0),
)
def test_a_killed_api_costs_no_job_and_no_key_a_second_one(worlds: Worlds, size: Size, tmp_path: Path) -> None:
    killed: list[int] = []
    with worlds.chaos(size, tmp_path, enough=lambda: len(killed) >= size.times) as run:

        def harm() -> None:
            if len(killed) < size.times:
                killed.append(run.world.api.pid)
                kill(run.world, run.world.api)

        run.work_off(harm, size.every)
        run.facts = {"kills of the API": len(killed)}
        run.judge("api-kill")


@sizes(
    short(jobs=90, times=3, every=0.5, long=1.0),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, times=9, every=10.0, long=40.0),
)
def test_a_process_that_stands_still_costs_no_job(worlds: Worlds, size: Size, tmp_path: Path) -> None:
    """A worker's parent, then its child, then the API. A long one stands still for longer than a lease."""
    stopped: list[str] = []
    with worlds.chaos(size, tmp_path, enough=lambda: len(stopped) >= size.times) as run:

        def harm() -> None:
            able = run.world.able()
            if len(stopped) >= size.times or not able:
                return
            what = ("parent", "child", "api")[len(stopped) % 3]
            worker, child = able[0]
            pid = {"parent": worker.pid, "child": child, "api": run.world.api.pid}[what]
            ends_leases = what == "parent" and size.shared  # a short one does not wait for them
            stand_still(run.world, what, pid, size.long, worker if ends_leases else None)
            stopped.append(what)

        run.work_off(harm, size.every)
        run.facts = {"stopped": dict(Counter(stopped)), "seconds each stood still": size.long}
        run.judge("stand-still")
        assert set(stopped) == {"parent", "child", "api"}


@sizes(
    short(jobs=50, times=3, every=0.4),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, times=40, every=2.0),
)
def test_memory_that_runs_out_costs_no_job_but_one_that_runs_out_of_it_three_times(
    worlds: Worlds, size: Size, tmp_path: Path
) -> None:
    kills: list[Kill] = []
    greedy: dict[str, str] = {}  # what asks for much memory, and its answer
    least = 0

    def idle(world: World) -> None:
        nonlocal least
        world.until(world.ready, "the service did not become ready")
        least = largest(world)[-1] + GREED // 2

    def with_greedy(submissions: Iterator[Submission]) -> Iterator[Submission]:
        for number in count(10**6):
            request = doubling(f"greedy {number}", [float(number)], seconds=1.0, memory=GREED)
            greedy[request.name] = digest({"doubled": [2.0 * number]})
            yield Submission(number, request, ends=("succeeded", "failed: worker-died"))
            yield from islice(submissions, 15)

    with worlds.chaos(size, tmp_path, enough=lambda: len(kills) >= size.times, before=idle, among=with_greedy) as run:

        def harm() -> None:
            if len(kills) < size.times:
                kill_the_largest(run.world, least, kills)

        run.work_off(harm, size.every)
        run.clean.update(greedy)
        struck = strikes(run.world.queue, run.load.jobs)
        given_up = {
            letter.request.id: letter.strikes
            for letter in run.world.queue.dead_letters(1000)
            if letter.request.id in run.load.jobs
        }
        run.facts = {
            "kills": dict(Counter(kill.what for kill in kills)),
            "jobs that asked for much": len(greedy),
            "jobs by strikes": dict(sorted(Counter(struck.values()).items())),
            "given up": len(given_up),
        }
        run.judge("memory")
        assert 0 < sum(struck.values()) <= sum(kill.what == "child" for kill in kills)
        assert given_up == {job: count for job, count in struck.items() if count == MAX_STRIKES}


EVERYTHING = ("redis", "api", "worker 1", "worker 2", "worker 3", "worker 4")
# Of all processes together, as where NTP sets a machine's clock, and of one alone, as on a host that has none.
JUMPS = [
    (whose, ahead)
    for whose in (EVERYTHING, ("worker 1",), ("api",), ("redis",), EVERYTHING)
    for ahead in (HOUR, 0.0, -HOUR, 0.0)
]


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_clocks_that_jump_cost_no_job_no_attempt_and_no_charge(worlds: Worlds, tmp_path: Path) -> None:
    """It has no short form: its service is one whose clocks can be set, and takes as long to start as a short form."""
    size = Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=700, workers=4, every=2.5)
    longer = {f"longer {n}": doubling(f"longer {n}", [float(n)], seconds=30.0 + n) for n in range(2)}
    first = [Submission(-n, request) for n, request in enumerate(longer.values(), 10**6)]
    jumps: list[tuple[str, ...]] = []
    releases: list[str] = []
    budget = ""

    def found(world: World) -> None:
        nonlocal budget
        body = {"name": "autumn", "dataset": "clocks", "accountant": "pure", "neighbouring": "add_remove"}
        answer = httpx.post(f"{world.url}/v1/budgets", json={**body, "epsilon": "1000000"}, timeout=60)
        assert answer.status_code == 201, answer.text
        budget = answer.json()["id"]

    def with_releases(submissions: Iterator[Submission]) -> Iterator[Submission]:
        """A deadline is a point of time, which a jump passes."""
        for number in count(10**6):
            for one in islice(submissions, 20):
                yield one if one.deadline_s is None else replace(one, ends=("succeeded", "expired"))
            releases.append(f"release {number}")
            yield Submission(number, release(releases[-1], budget), key=f"{tmp_path.name}-{number}")

    with worlds.chaos(
        size,
        tmp_path,
        first=first,
        enough=lambda: len(jumps) >= len(JUMPS),
        clocked=True,
        before=found,
        among=with_releases,
    ) as run:

        def harm() -> None:
            if len(jumps) < len(JUMPS):
                jumps.append(jump(run.world, *JUMPS[len(jumps)]))

        run.work_off(harm, size.every)
        run.clean.update({f"longer {n}": digest({"doubled": [2.0 * n]}) for n in range(2)})
        run.clean.update(answers_of(releases, run.history))
        expired = {entry.job for entry in run.history.entries() if entry.state == "expired"}
        run.facts = {"jumps": len(jumps), "releases charged": len(releases), "deadlines passed by": len(expired)}
        run.judge("clock-jumps")
        assert run.facts["jobs by attempts"].keys() <= {0, 1}
        with httpx.Client(base_url=f"{run.world.url}/v1/budgets/", timeout=60) as http:
            assert Fraction(http.get(budget).json()["spent"]["epsilon"]) == Fraction(len(releases), 10)
            assert http.get(f"{budget}/verify").json()["valid"]


def answers_of(requests: Sequence[str], history: History) -> dict[str, str]:
    """What was answered first to each of these requests, which no clean run can know."""
    entries = history.entries()
    jobs = {entry.submission: entry.job for entry in entries if entry.what == "acknowledged"}
    names = {jobs.get(entry.submission): entry.request for entry in entries if entry.what == "submitted"}
    found: dict[str, str] = {}
    for entry in entries:
        if entry.answer is not None and (name := names.get(entry.job)) in requests:
            found.setdefault(str(name), entry.answer)
    assert found.keys() == set(requests)
    return found


@pytest.mark.timeout(400)
def test_a_loss_and_a_second_commit_in_the_real_service_are_found(worlds: Worlds, tmp_path: Path) -> None:
    with worlds.chaos(short(jobs=40), tmp_path) as run:
        run.work_off()
        queue, redis = run.world.queue, run.world.connection
        lost, twice, other = sorted(
            job for job in run.load.jobs if (record := queue.get(job)) is not None and record.state == "succeeded"
        )[:3]
        redis.delete(job_key(lost))
        record, another = queue.get(twice), queue.get(other)
        assert record is not None
        assert another is not None
        assert another.result is not None
        assert another.provenance is not None
        held = Held(record.request, 7, token="again")
        claim = f"7 {digest_of_claim(held.token)}"
        running = {"state": "running", "attempt": 7, "claim": claim, "started_at": time.time()}
        redis.hset(job_key(twice), mapping=running)
        second = Succeeded(result=another.result, provenance=another.provenance)
        assert queue.finish([Ending(held, second)])[0] == ["done"]
        run.load.audit()
        verdict = check(run.history.entries(), run.clean)
        assert set(verdict.lost) == {lost}
        assert set(verdict.duplicated) == {twice}
        assert set(verdict.wrong) <= {twice}
        assert verdict.unexpected == {}


def suspended(world: World) -> None:
    """Workers take nothing from here on, as after `rq suspend`."""
    suspend(world.connection)
    world.until(lambda: all(worker.get_state() == "suspended" for worker in Worker.all(world.connection)), "they work")


def once(harm: Callable[[], None]) -> Callable[[], None]:
    left = [harm]
    return lambda: left.pop()() if left else None
