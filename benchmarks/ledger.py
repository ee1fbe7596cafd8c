"""Benchmark of the privacy ledger: charges a second, beside the smallest transaction of the same database.

The peer is one INSERT of a short row and its commit through the database's own driver, under the same settings, in the
same run, in turns. A charge is a transaction of eight statements, and then one of the anchor, a database of the same
kind. A whole life is a charge, a claim and a release, of one transaction each beside the anchor's. All force each
commit to the disk. All processes charge one budget, which is one row that they wait for; the bare rows of several
processes wait for nothing but the disk, whose waits PostgreSQL shares among them.
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

from warpdesk_server.benchmarks.postgres import NoPostgres, postgres
from warpdesk_server.benchmarks.report import show
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy import anchor
from warpdesk_server.privacy.anchor import Anchor
from warpdesk_server.privacy.budgets import NewBudget
from warpdesk_server.privacy.charges import ChargeRequest
from warpdesk_server.privacy.database import connect
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.seeds import Secrets

SECONDS = 1.0  # of a turn
TURNS = 3
PROCESSES = (1, 16)

KEY = bytes(32)
RELEASE = {"operation": "dp_noise", "params": '{"epsilon":"0.001"}', "inputs": '{"values":"blake3:00"}', "version": "1"}
SPEND = Spend(pure=Fraction(1, 1000), approx=None, zcdp=None, neighbouring=None)

Urls = tuple[str, str]  # of the ledger, and of its anchor

BARE, CHARGE, LIFE = "bare", "charge", "life"


def main() -> None:
    rows = []
    for name, place in (("SQLite", _sqlite), ("PostgreSQL", _postgresql)):
        try:
            with place() as urls:
                rows += [_row(name, urls, processes) for processes in PROCESSES]
        except NoPostgres as reason:
            print(f"no PostgreSQL: {reason}")
    show("ledger", rows)


def _row(name: str, urls: Urls, processes: int) -> dict[str, Any]:
    turns: dict[str, list[float]] = {BARE: [], CHARGE: [], LIFE: []}
    for _ in range(TURNS):
        for what, rates in turns.items():
            rates.append(_rate(urls, what, processes))
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


def _rate(urls: Urls, what: str, processes: int) -> float:
    """The transactions per second of `processes` processes at once."""
    context = multiprocessing.get_context("fork")  # before any of them has an engine
    barrier = context.Barrier(processes)
    done = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(urls, what, number, barrier, done)) for number in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(worker.exitcode == 0 for worker in workers)
    return sum(done.get() for _ in workers) / SECONDS


def _work(urls: Urls, what: str, number: int, barrier: Barrier, done: Any) -> None:
    once = _bare(connect(urls[0])) if what == BARE else _charged(urls, number, whole=what == LIFE)
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


def _charged(urls: Urls, number: int, *, whole: bool) -> Callable[[], object]:
    ledger = _ledger(urls)
    [budget] = ledger.budgets.page(1)
    line = f"{number} {time.monotonic_ns()}"
    count = 0

    def once() -> None:
        nonlocal count
        count += 1
        order = ChargeRequest(
            owner="key_a",
            idempotency_key=f"{line} {count}",
            fingerprint="a request",
            **RELEASE,
            job_id=f"job_{count}",
            job="{" + '"a":"job",' * 50 + "}",  # half a kilobyte, as a small job has
        )
        charge = ledger.charges.reserve(budget.id, SPEND, order).charge
        if whole:
            ledger.charges.claim(charge.id, **RELEASE)
            ledger.charges.release(charge.id, '{"result":"here"}', b"a digest")

    return once


@contextmanager
def _sqlite() -> Iterator[Urls]:
    with tempfile.TemporaryDirectory(prefix="warpdesk-bench-") as home:
        urls = f"sqlite:///{Path(home) / 'ledger.db'}", f"sqlite:///{Path(home) / 'ledger.anchor'}"
        _prepare(urls)
        yield urls


@contextmanager
def _postgresql() -> Iterator[Urls]:
    with postgres() as server:
        urls = server, make_url(server).set(database="template1").render_as_string()  # another that every server has
        _prepare(urls)
        yield urls


def _ledger(urls: Urls) -> Ledger:
    database, anchored = map(connect, urls)
    return Ledger(database, KEY, Anchor(anchored, Secrets(KEY), "ledger_measured"))


def _prepare(urls: Urls) -> None:
    engine = connect(urls[1])
    anchor.begin(engine)
    engine.dispose()
    ledger = _ledger(urls)
    ledger.prepare()
    budget = NewBudget(
        name="a budget",
        dataset="a dataset",
        accountant="pure",
        neighbouring="add_remove",
        created_by="key_a",
        epsilon="1000000",
    )
    ledger.budgets.open(budget)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE bare (text TEXT)")
    ledger.dispose()


if __name__ == "__main__":
    main()
