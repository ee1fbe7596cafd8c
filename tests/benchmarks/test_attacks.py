"""The attacks of `python -m benchmarks attacks` in small, on a whole service: how each is answered, the bytes that the
API takes for it, and that another key's jobs are done. Times are judged by the benchmark alone.

`tests/deploy/test_redis_scripts.py` has Lua without an end, `tests/app/http/test_open_connections.py` and
`tests/app/access/test_auth.py` have what is sent to a service without keys.
"""

from collections.abc import Iterator

import pytest

from tests.conftest import serve
from warpdesk_server.benchmarks.attackers import Target
from warpdesk_server.benchmarks.attacks import ATTACKS, Attack, Start, attacker, make_keys, measure

pytestmark = pytest.mark.timeout(900)  # a service starts, and its attacker

MIB = 1 << 20
JUDGED = {"answers", "memory", "refused", "right", "lives"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A whole service whose limits are met soon."""
    home = tmp_path_factory.mktemp("attacked") / "home"
    keys = make_keys(home)
    settings = {"BODY_SECONDS": "1", "MAX_LIVE_JOBS": "100", "MAX_STORED_BYTES_PER_KEY": str(64 * MIB)}
    with serve(home, **{f"WARPDESK_{name}": value for name, value in settings.items()}) as service:
        yield Target(service.url, home, **keys)


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    with attacker() as started:
        yield started


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.short is not None], ids=lambda a: a.what)
def test_an_attack_is_refused_for_little_memory_and_another_key_goes_on(
    target: Target, start: Start, attack: Attack
) -> None:
    assert attack.short is not None
    row = measure(target, attack, attack.short, start, idle=0.0, calm=2)

    assert not JUDGED & set(row["missed"].split(", ")), row
    assert row["API MiB"] < 300
