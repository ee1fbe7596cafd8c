"""Four hosts, each a network namespace with a worker and without the store, compute jobs and shards of jobs."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cables import cable
from tests.chaos.faults import Kill, Killer
from tests.chaos.measure import redeliveries, shown
from tests.chaos.test_chaos import JOBS, SEED, Size, Worlds, sizes

HOSTS = 4


@pytest.fixture
def worlds() -> Worlds:
    return Worlds()


@sizes(
    Size("short", jobs=60, kinds=16, workers=HOSTS, times=4, every=1.0, spare=2),
    Size(f"{JOBS // 5} jobs", jobs=JOBS // 5, kinds=240, workers=HOSTS, times=60, every=1.0, spare=2),
)
@pytest.mark.chaos  # four hosts beside the others of a test run: alone the short one takes 26 s
def test_four_hosts_with_a_kill_every_second_lose_no_job_and_give_the_bytes_of_one(
    worlds: Worlds, size: Size, tmp_path: Path
) -> None:
    kills: list[Kill] = []
    with ExitStack() as network:
        cables = [network.enter_context(cable(number)) for number in range(HOSTS)]
        with worlds.chaos(size, tmp_path, enough=lambda: len(kills) >= size.times, cables=cables) as run:
            killer = Killer(run.world, SEED, kills, size.spare)

            def harm() -> None:
                if len(kills) < size.times:
                    killer.strike()

            run.work_off(harm, size.every)
            seconds = redeliveries(run.world.queue, kills)
            run.facts = {
                "kills": dict(Counter(kill.what for kill in kills)),
                "jobs whose worker was killed": sum(len(kill.held) for kill in kills),
                "shards whose worker was killed": sum(kill.shards for kill in kills),
                **{f"seconds until a job goes on after the death of a {what}": each for what, each in shown(seconds)},
            }
            run.judge("hosts")
            assert run.facts["jobs in shards"] > 0
