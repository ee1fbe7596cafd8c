"""No acknowledged job is lost, none is seen twice, none is answered wrongly, whatever happens to the service.

Each scenario runs a whole service under load, does harm to it, and has the history of what clients saw judged. The
short forms are part of `make test`; `make chaos` runs the long ones, prints what it measured, and with CHAOS_SAVE=1
keeps that in benchmarks/results. CHAOS_JOBS is how many jobs a long one sends.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from tests.chaos.checker import Verdict, check
from tests.chaos.faults import Kill, Killer
from tests.chaos.history import History
from tests.chaos.load import Load, clean_run
from tests.chaos.measure import attempts, redeliveries, shown, strikes
from tests.chaos.workload import Submission, Workload
from tests.chaos.world import World

SAVE = bool(os.environ.get("CHAOS_SAVE"))
JOBS = int(os.environ.get("CHAOS_JOBS", "10000"))
SETTLE_PATIENCE = 180.0  # seconds in which every job must have ended once nothing more is done to the service
SEED = 20261122


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
    facts: dict[str, Any] = field(default_factory=dict)
    expected_exits: int = 0

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

    def judge(self, scenario: str) -> Verdict:
        """After everything is whole again: read all once more, have it judged, print and keep what was measured."""
        self.world.until(self.world.ready, "the service did not recover")
        self.load.audit()
        verdict = check(self.history.entries(), self.clean)
        tries = attempts(self.world.queue, self.load.jobs)
        self.facts = {
            "acknowledged": verdict.acknowledged,
            "lost": len(verdict.lost),
            "seen twice": len(verdict.duplicated),
            "changed": len(verdict.changed),
            "wrong": len(verdict.wrong),
            "unexpected": len(verdict.unexpected),
            "jobs by attempts": tries,
            "late finishes refused": self.world.log().count("came too late"),
            "workers that ended by themselves": len(self.world.own_exits),
            "of those with 0": self.world.own_exits.count(0),
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
    ) -> Iterator[Run]:
        workload = Workload(SEED, size.kinds)
        with History(folder / "history.jsonl") as history:
            world, clean = self._world(size, history, workload, proxied)
            try:
                submissions = chain(first, workload.submissions())
                with Load(world.url, history, submissions, size.jobs, size.outstanding, enough) as load:
                    yield Run(world, history, load, clean, size)
            except BaseException:
                self._shared = None
                world.close(failed=True)
                raise
            if not size.shared:
                world.close()

    def _world(self, size: Size, history: History, workload: Workload, proxied: bool) -> tuple[World, dict[str, str]]:
        if size.shared and self._shared is not None:
            self._shared[0].attend(history)
            return self._shared
        world = World(history, workers=size.workers, proxied=proxied or size.shared)
        world.start()
        made = world, clean_run(world.url, history, workload.requests)
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
    short(jobs=500, times=10, every=0.5, spare=3),
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
            **{f"seconds until a job goes on after the death of a {kind}": told for kind, told in shown(seconds)},
            "jobs with strikes": len(strikes(run.world.queue, run.load.jobs)),
        }
        run.judge("kills")
        assert {kill.what for kill in kills} == {"parent", "child"}
