"""How many charges a second does a ledger take, beside the barest transaction of the same database?

The peer is one INSERT of a short row and its commit through the database's own driver, under the same settings, in the
same run, in turns. A charge is one transaction too, of eight statements; a whole life is three: charge, claim, release.
Both databases force each commit to the disk. All processes charge one budget, which is one row that they wait for; the
bare rows of several processes wait for nothing but the disk, whose waits PostgreSQL shares among them.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, make_url

from benchmarks.postgres import NoPostgres, postgres
from benchmarks.report import show
from kernels.spend import Spend
from privacy.database import connect
from privacy.ledger import Ledger, NewBudget, Order

SECONDS = 1.0  # of a turn
TURNS = 3
PROCESSES = (1, 16)

KEY = bytes(32)
RELEASE = {"operation": "dp_noise", "params": '{"epsilon":"0.001"}', "inputs": '{"values":"blake3:00"}', "version": "1"}
SPEND = Spend(pure=Fraction(1, 1000), approx=None, zcdp=None, neighbouring=None)

BARE, CHARGE, LIFE = "bare", "charge", "life"


def main() -> None:
    rows = []
    for name, place in (("SQLite", _sqlite), ("PostgreSQL", _postgresql)):
        try:
            with place() as url:
                rows += [_row(name, url, processes) for processes in PROCESSES]
        except NoPostgres as reason:
            print(f"no PostgreSQL: {reason}")
    show("ledger", rows)


def _row(name: str, url: str, processes: int) -> dict[str, Any]:
    turns: dict[str, list[float]] = {BARE: [], CHARGE: [], LIFE: []}
    for _ in range(TURNS):
        for what, rates in turns.items():
            rates.append(_rate(url, what, processes))
    bare, charge, life = (statistics.median(turns[what]) for what in (BARE, CHARGE, LIFE))
    return {
        "database": name,
        "processes": processes,
        "charges per s": charge,
        "charges, claims and releases per s": life,
        "bare transactions per s": bare,
        "charges per bare transaction": charge / bare,
        "whole lives per bare transaction": life / bare,
    }


def _rate(url: str, what: str, processes: int) -> float:
    """Done per second by so many at once."""
    context = multiprocessing.get_context("fork")  # before any of them has an engine
    barrier = context.Barrier(processes)
    done = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(url, what, number, barrier, done)) for number in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(worker.exitcode == 0 for worker in workers)
    return sum(done.get() for _ in workers) / SECONDS


def _work(url: str, what: str, number: int, barrier: Barrier, done: Any) -> None:
    engine = connect(url)
    once = _bare(engine) if what == BARE else _charged(engine, number, whole=what == LIFE)
    for _ in range(3):
        once()
    barrier.wait()
    count, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        once()
        count += 1
    done.put(count)


def _bare(engine: Engine) -> Callable[[], object]:
    connection = engine.raw_connection().driver_connection
    assert connection is not None
    sqlite = engine.dialect.name == "sqlite"

    def once() -> None:
        if sqlite:
            connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO bare (text) VALUES ('a short row')")
        connection.commit()

    return once


def _charged(engine: Engine, number: int, *, whole: bool) -> Callable[[], object]:
    ledger = Ledger(engine, KEY)
    [budget] = ledger.budgets(1)
    said = f"{number} {time.monotonic_ns()}"
    count = 0

    def once() -> None:
        nonlocal count
        count += 1
        order = Order(
            owner="key_a",
            idempotency_key=f"{said} {count}",
            fingerprint="a request",
            **RELEASE,
            job_id=f"job_{count}",
            job="{" + '"a":"job",' * 50 + "}",  # half a kilobyte, as a small job has
        )
        charge = ledger.charge(budget.id, SPEND, order).charge
        if whole:
            ledger.claim(charge.id, **RELEASE)
            ledger.release(charge.id, '{"result":"here"}', b"a digest")

    return once


@contextmanager
def _sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home:
        url = f"sqlite:///{Path(home) / 'ledger.db'}"
        _prepare(url)
        yield url


@contextmanager
def _postgresql() -> Iterator[str]:
    with postgres() as server:
        url = make_url(server).render_as_string()
        _prepare(url)
        yield url


def _prepare(url: str) -> None:
    engine = connect(url)
    ledger = Ledger(engine, KEY)
    ledger.prepare()
    budget = NewBudget(
        name="a budget",
        dataset="a dataset",
        accountant="pure",
        neighbouring="add_remove",
        created_by="key_a",
        epsilon="1000000",
    )
    ledger.create(budget)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE bare (text TEXT)")
    engine.dispose()


if __name__ == "__main__":
    main()
