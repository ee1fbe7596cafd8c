"""The ledger's key is rotated beside those who charge, claim and release: nothing is refused, and nothing unread."""

import os
import stat
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from tests.privacy.conftest import KEY
from tests.privacy.ledgers import charged, claimed, open_budget
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.seeds import Ring, Secrets, UnusableKey, WrongKey
from warpdesk_server.privacy.tables import SEEDS


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A key file as it was written before there was rotation."""
    path = tmp_path / "ledger.key"
    path.write_text(KEY.hex() + "\n")
    path.chmod(0o600)
    return path


def opened(engine: Engine, key: bytes) -> int:
    """How many seeds of the database one key opens."""
    found = 0
    with engine.connect() as connection:
        for charge_id, wrapped in connection.execute(select(SEEDS.c.charge_id, SEEDS.c.wrapped)):
            try:
                Secrets(key).unwrap(wrapped, charge_id)
                found += 1
            except WrongKey:
                pass
    return found


def test_new_seeds_are_wrapped_with_the_newest_key_and_older_ones_open(engine: Engine, file: Path) -> None:
    api, worker = Ledger(engine, Ring(file)), Ledger(engine, Ring(file))
    budget = open_budget(api, epsilon="1")
    before = charged(api, budget, 1)

    Ring(file).grow(file, forget=True)
    after = charged(api, budget, 2)

    first, second = Ring(file).keys()
    assert (first, opened(engine, first), opened(engine, second)) == (KEY, 1, 1)
    claimed(worker, before)
    claimed(worker, after)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_digests_of_before_fit_after_a_rotation(engine: Engine, file: Path) -> None:
    ledger = Ledger(engine, Ring(file))
    budget = open_budget(ledger, epsilon="1")
    charge = charged(ledger, budget, 1)
    noise = claimed(ledger, charge)

    Ring(file).grow(file, forget=True)
    restarted = Ledger(engine, Ring(file))
    restarted.prepare()

    assert charged(restarted, budget, 1).id == charge.id  # its idempotency key is known
    assert claimed(restarted, charge) == noise  # the same noise, so the same answer
    assert restarted.budgets.verify(budget.id).ok
    restarted.charges.release(charge.id, "{}", b"an answer")
    assert restarted.budgets.verify(budget.id).ok


def test_what_is_open_is_wrapped_again_and_the_key_between_is_gone(engine: Engine, file: Path) -> None:
    ledger = Ledger(engine, Ring(file))
    budget = open_budget(ledger, epsilon="1")
    charges = [charged(ledger, budget, number) for number in range(3)]
    noise = claimed(ledger, charges[0])
    for _ in range(2):
        assert ledger.charges.rewrap() == 3
        Ring(file).grow(file, forget=True)
        assert ledger.charges.rewrap() == 3

    first, middle, newest = Ring(file).keys()
    assert (first, [opened(engine, key) for key in (first, middle, newest)]) == (KEY, [0, 0, 3])
    assert claimed(ledger, charges[0]) == noise
    yesterday = time.time() - 86_400
    os.utime(file, (yesterday, yesterday))  # else somebody may just be writing what the middle one wrapped
    Ring(file).grow(file, forget=True)
    assert Ring(file).keys()[:2] == (first, newest)
    assert claimed(ledger, charges[0]) == noise


def test_a_rotation_beside_charges_claims_and_releases_stops_none(engine: Engine, file: Path) -> None:
    """Three threads make and end charges while the key is rotated eight times."""
    ledger = Ledger(engine, Ring(file))
    budget = open_budget(ledger, epsilon="1000000")  # more than the threads can spend meanwhile
    released: list[str] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def work(first: int) -> None:
        mine = Ledger(engine, Ring(file))
        number = first
        try:
            while not over.is_set():
                charge = charged(mine, budget, number)
                claimed(mine, charge)
                mine.charges.release(charge.id, "{}", b"an answer")
                released.append(charge.id)
                number += 3
        except BaseException as error:  # noqa: BLE001 (told below)
            failed.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(8):
        while len(released) < 3 * turn and not failed:
            over.wait(0.002)
        ledger.charges.rewrap()
        Ring(file).grow(file, forget=True)
        ledger.charges.rewrap()
    over.set()
    for thread in threads:
        thread.join()

    assert failed == []
    assert len(released) >= 21
    assert ledger.budgets.verify(budget.id).ok


def test_a_ring_whose_first_key_changed_is_refused_by_who_runs(file: Path) -> None:
    ring = Ring(file)
    file.unlink()
    Ring(file)

    for _ in range(2):
        with pytest.raises(UnusableKey, match=r"the first key of .* is another now"):
            ring.keys()


def test_a_ring_made_for_other_hosts_changes_nothing_here(file: Path, tmp_path: Path) -> None:
    ring = Ring(file)
    ring.grow(tmp_path / "new", forget=False)

    assert Ring(file).keys() == (KEY,)
    assert Ring(tmp_path / "new").keys()[0] == KEY
    assert len(Ring(tmp_path / "new").keys()) == 2


def test_of_rotations_at_once_no_key_is_lost(file: Path) -> None:
    """Each is in the ring afterwards: a seed may have been wrapped with it meanwhile."""
    rings = [Ring(file) for _ in range(8)]
    together = threading.Barrier(len(rings))

    def rotate(ring: Ring) -> None:
        together.wait()
        for _ in range(5):
            ring.grow(file, forget=True)

    threads = [threading.Thread(target=rotate, args=(ring,)) for ring in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Ring(file).keys()) == 1 + 5 * len(rings)
