"""With three Redis servers, Sentinels and WARPDESK_DURABILITY=replicated, a failover costs no acknowledged job.

Primaries are killed, stand still, and are split from their replicas while clients and workers still reach all of them:
then two servers take themselves for the primary.
"""

import random
from collections import Counter

import pytest

from tests.chaos.faults import fail_over
from tests.chaos.test_chaos import JOBS, SEED, Size, Worlds, sizes
from tests.redis_servers import server

HOW = ("kill", "split", "stop", "replica")


@pytest.fixture
def worlds() -> Worlds:
    return Worlds()


@sizes(
    Size("short", jobs=100, kinds=42, workers=2, times=2, every=1.0, long=1.0),
    Size(f"{JOBS // 2} jobs", jobs=JOBS // 2, kinds=350, workers=4, times=24, every=5.0, long=6.0),
)
@pytest.mark.chaos  # six servers beside the others of a test run: alone the short one takes 40 s, beside them minutes
@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_a_promoted_replica_has_every_acknowledged_job(
    worlds: Worlds, size: Size, name: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue("tmp_path")
    done: list[str] = []
    chance = random.Random(SEED)
    with worlds.chaos(size, folder, enough=lambda: len(done) >= size.times, servers=server(name)) as run:

        def harm() -> None:
            if len(done) < size.times:
                how = HOW[len(done)] if len(done) < len(HOW) else chance.choice(HOW)
                fail_over(run.world, how, size.long)
                done.append(how)

        run.work_off(harm, size.every)
        run.facts = {"faults of servers": dict(Counter(done)), "the servers": name}
        run.judge(f"failover-{name}")
        assert len(done) == size.times
