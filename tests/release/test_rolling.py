"""API and workers of this release and of the one before share a Redis for a whole rolling update, and back.

Each part is replaced in turn while jobs are sent, computed and read, and what clients saw is judged. On the way back
the API goes first, and a worker once the jobs from before the last replacement have ended: a worker of the release
before does not know the lanes of small inputs and of long jobs (decisions 49 and 50). An operation may answer in other
bytes in another release, so an answer is right if a clean run of either one gives it.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.faults import restart
from tests.chaos.load import clean_run
from tests.chaos.test_chaos import SEED, Size, Worlds
from tests.chaos.workload import Workload
from tests.chaos.world import Part, World
from tests.conftest import ROOT

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]


def release_of(part: Part, before: Path) -> str:
    environment = Path(f"/proc/{part.pid}/environ").read_bytes().decode().split("\0")
    path = next(entry for entry in environment if entry.startswith("PYTHONPATH=")).removeprefix("PYTHONPATH=")
    return "before" if path.startswith(f"{before}:") else "ours"


@pytest.mark.parametrize(
    ("order", "update"),
    [
        (("api", "worker 1", "worker 2", "worker 3"), True),
        (("worker 1", "worker 2", "worker 3", "api"), True),
        (("api", "worker 1", "worker 2", "worker 3"), False),
    ],
    ids=["update", "update-workers-first", "back"],
)
def test_a_rolling_update_costs_no_job(
    order: Sequence[str], update: bool, sources_before: Path, tmp_path: Path
) -> None:
    first, then = (sources_before, ROOT) if update else (ROOT, sources_before)
    size = Size("rolling", jobs=50, kinds=70, workers=3, outstanding=60, widths=False)
    replaced: list[str] = []
    earlier: list[str] = []  # jobs that were acknowledged before the last replacement

    def part_of(world: World, name: str) -> Part:
        return next(part for part in world.parts if part.name == name)

    with Worlds().chaos(size, tmp_path, enough=lambda: len(replaced) == len(order), sources=first) as run:
        world = run.world
        assert {release_of(part, sources_before) for part in world.parts} == {"before" if update else "ours"}

        def replace() -> None:
            records = world.queue.records(earlier)
            ended = all(record is None or record.state.final for record in records)
            if len(replaced) < len(order) and ended and len(run.load.jobs) > len(earlier):
                world.sources = then
                restart(world, part_of(world, order[len(replaced)]))
                replaced.append(order[len(replaced)])
                earlier[:] = run.load.jobs

        run.work_off(replace, 0.2)
        world.until(world.ready, "the service did not recover")
        requests = Workload(tmp_path.name, SEED, size.kinds, size.widths).requests
        run.of_another_release = clean_run(world.url, run.history, requests, world.token, turn=1)
        run.facts = {"replaced": ", ".join(replaced)}
        run.judge(f"rolling-{'update' if update else 'back'}")
        assert {release_of(part, sources_before) for part in world.parts} == {"ours" if update else "before"}
