"""A ledger whose database is older than its anchor, missing or another one is refused, until an admin accepts it."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, make_url, text

from tests.privacy.conftest import create_database
from tests.privacy.ledgers import charge_request, charged, claimed, open_budget
from tests.privacy.processes import Processes
from warpdesk_server.privacy import anchor
from warpdesk_server.privacy.anchor import Anchor
from warpdesk_server.privacy.budgets import BudgetClosed
from warpdesk_server.privacy.database import (
    SCHEMA,
    DamagedDatabase,
    DatabaseUnavailable,
    UnusableDatabase,
    connect,
    facts,
    writing,
)
from warpdesk_server.privacy.journal import LedgerBehind
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.opening import Place, accept_database, examine, open_ledger
from warpdesk_server.privacy.seeds import Ring, Secrets, UnusableKey, WrongKey

Open = Callable[[Place], Ledger]


@pytest.fixture
def place(empty_database: str, tmp_path: Path) -> Place:
    anchor = f"sqlite:///{tmp_path}/ledger.anchor"
    if not empty_database.startswith("sqlite"):
        anchor = empty(empty_database, tmp_path)
    return Place(empty_database, anchor, tmp_path / "ledger.key", tmp_path / "ledger-existed")


@pytest.fixture
def opened() -> Open:
    """Open a ledger, whose connections end with the call: its database may be copied."""

    def open_and_let_go(place: Place) -> Ledger:
        ledger = open_ledger(place)
        ledger.dispose()
        return ledger

    return open_and_let_go


def accept(place: Place) -> list[str]:
    announcements: list[list[str]] = []
    closed = accept_database(place, "user root", announcements.append)
    assert announcements == [closed]
    return closed


class AnnouncementFailed(Exception):
    pass


def fail_to_announce(_closed: list[str]) -> None:
    raise AnnouncementFailed


def copy_of(url: str, tmp_path: Path) -> str:
    """Another database with the same content."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return create_database(parsed, str(parsed.database))
    file = tmp_path / f"copy{random.getrandbits(32)}.db"
    shutil.copy(str(parsed.database), file)
    return f"sqlite:///{file}"


def empty(url: str, tmp_path: Path) -> str:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return create_database(parsed, "template0")
    return f"sqlite:///{tmp_path}/empty{random.getrandbits(32)}.db"


def test_an_older_copy_is_refused_and_closes_what_it_lacks_once_it_is_accepted(
    place: Place, opened: Open, tmp_path: Path
) -> None:
    ledger = opened(place)
    behind, unchanged = open_budget(ledger, "a"), open_budget(ledger, "b")
    charged(ledger, behind, 1)
    ledger.dispose()
    older = replace(place, database=copy_of(place.database, tmp_path))
    charged(ledger, behind, 2)
    lost = open_budget(ledger, "c", epsilon="0.5")
    charged(ledger, lost, 3)
    ledger.dispose()
    for look in (open_ledger, examine):
        with pytest.raises(LedgerBehind, match=r"put the newest copy .* back, or run `warpdesk ledger accept`"):
            look(older)

    assert sorted(accept(older)) == sorted([behind.id, lost.id])

    ledger = opened(older)
    with pytest.raises(BudgetClosed):
        charged(ledger, behind, 4)
    [_, entry] = ledger.budgets.history(behind.id, 0, 9)
    assert (entry.kind, entry.owner) == ("close", "user root")
    assert entry.reason.startswith(f"{behind.id} has 1 entries, and 2 were written")
    found = ledger.budgets.get(lost.id)
    assert (found.state, found.total, found.dataset) == ("closed", {"epsilon": "0.5"}, "c")
    charged(ledger, unchanged, 5)
    assert all(ledger.budgets.verify(budget.id).ok for budget in (behind, unchanged, lost))
    ledger.dispose()


def test_a_database_that_is_missing_or_empty_is_refused_and_nothing_is_made(
    place: Place, opened: Open, tmp_path: Path
) -> None:
    ledger = opened(place)
    budget = open_budget(ledger)
    charged(ledger, budget)
    ledger.dispose()
    new = replace(place, database=empty(place.database, tmp_path))
    with pytest.raises(LedgerBehind, match="database is missing or empty, and its anchor is not"):
        open_ledger(new)
    engine = connect(new.database)
    assert facts(engine) == {}
    engine.dispose()

    assert accept(new) == [budget.id]

    ledger = opened(new)
    assert (ledger.budgets.get(budget.id).state, ledger.budgets.verify(budget.id).ok) == ("closed", True)
    ledger.dispose()


def test_a_ledger_of_another_history_under_the_same_key_is_refused(place: Place, opened: Open, tmp_path: Path) -> None:
    opened(place)
    other = replace(
        place, database=empty(place.database, tmp_path), anchor=empty(place.anchor, tmp_path), note=tmp_path / "other"
    )
    ledger = opened(other)
    theirs = open_budget(ledger)
    ledger.dispose()
    foreign = replace(other, anchor=place.anchor)
    with pytest.raises(LedgerBehind, match="another than the one its anchor is of"):
        open_ledger(foreign)
    assert accept(foreign) == [theirs.id], "its past is not known here"
    opened(foreign)


def test_a_ledger_of_the_release_before_is_another_to_a_bound_anchor(
    place: Place, opened: Open, tmp_path: Path
) -> None:
    opened(place)
    earlier = Ledger(connect(empty(place.database, tmp_path)), Ring(place.key_file))
    earlier.prepare()
    theirs = open_budget(earlier)
    foreign = replace(place, database=earlier.engine.url.render_as_string(hide_password=False))
    earlier.dispose()
    with pytest.raises(LedgerBehind, match="another than the one its anchor is of"):
        open_ledger(foreign)
    assert accept(foreign) == [theirs.id]


def test_an_acceptance_that_is_cut_off_is_refused_and_told_again(place: Place, opened: Open, tmp_path: Path) -> None:
    ledger = opened(place)
    behind = open_budget(ledger, "a")
    charged(ledger, behind, 1)
    ledger.dispose()
    older = replace(place, database=copy_of(place.database, tmp_path))
    charged(ledger, behind, 2)
    last = open_budget(ledger, "never charged")
    ledger.dispose()
    closed = sorted([behind.id, last.id])
    announcement: list[str] = []
    with _cut_off(older.database), pytest.raises(KeyboardInterrupt):
        accept_database(older, "user root", announcement.extend)
    assert sorted(announcement) == closed

    with pytest.raises(LedgerBehind):
        open_ledger(older)
    assert sorted(accept(older)) == closed
    ledger = opened(older)
    assert {budget.state for budget in ledger.budgets.page(9)} == {"closed"}
    assert all(ledger.budgets.verify(budget_id).ok for budget_id in closed)
    ledger.dispose()


@contextmanager
def _cut_off(url: str) -> Iterator[None]:
    """End whoever commits to that database once an anchor was replaced."""
    replacements = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        replacements.extend(["replaced"] if statement.startswith("DELETE FROM anchor_heads") else [])

    def end(connection: Any) -> None:
        if replacements and connection.engine.url.database == make_url(url).database:
            raise KeyboardInterrupt

    event.listen(Engine, "before_cursor_execute", note)
    event.listen(Engine, "commit", end)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        event.remove(Engine, "commit", end)


def test_a_chain_that_was_charged_from_an_older_copy_on_is_noticed(place: Place, opened: Open, tmp_path: Path) -> None:
    ledger = opened(place)
    budget = open_budget(ledger)
    ledger.dispose()
    fork = replace(place, database=copy_of(place.database, tmp_path))
    charged(ledger, budget, 1)
    ledger.dispose()
    without = Ledger(connect(fork.database), Ring(fork.key_file))
    for number in (2, 3):
        charged(without, budget, number)
    without.dispose()
    with pytest.raises(LedgerBehind, match=f"entry 1 of {budget.id} is another than was written"):
        open_ledger(fork)


def test_nothing_that_an_older_copy_may_have_forgotten_is_refunded(place: Place, opened: Open, tmp_path: Path) -> None:
    ledger = opened(place)
    budget = open_budget(ledger)
    published = charged(ledger, budget, 1)
    ledger.dispose()
    older = replace(place, database=copy_of(place.database, tmp_path))
    claimed(ledger, published)
    ledger.charges.release(published.id, "{}", b"an answer")
    ledger.dispose()

    ledger = opened(older)  # no entry of a chain is missing
    later = charged(ledger, budget, 2)
    assert not ledger.charges.refund(published.id, "its inputs are gone", forget_key=True)
    ledger.charges.fail(published.id, "its inputs are gone")
    assert ledger.charges.refund(later.id, "its job was canceled", forget_key=False)
    assert (ledger.budgets.get(budget.id).spent, ledger.budgets.verify(budget.id).ok) == ({"epsilon": "0.1"}, True)
    ledger.dispose()


def test_a_database_that_is_put_back_while_the_service_runs_is_charged_nothing(
    place: Place, opened: Open, tmp_path: Path
) -> None:
    ledger = opened(place)
    budget = open_budget(ledger)
    first = charged(ledger, budget, 1)
    ledger.dispose()
    older = connect(copy_of(place.database, tmp_path))
    charged(ledger, budget, 2)
    late = open_budget(ledger, "made later")
    ledger.dispose()
    ledger._journal.engine = older
    for refused in (
        lambda: charged(ledger, budget, 3),
        lambda: charged(ledger, late, 4),
        lambda: ledger.charges.refund(first.id, "a test", forget_key=False),
        lambda: ledger.budgets.close(budget.id, "key_admin"),
        lambda: open_budget(ledger, "made later"),
        lambda: ledger.compare(),
    ):
        with pytest.raises(LedgerBehind):
            refused()
    assert ledger.budgets.get(budget.id).spent == {"epsilon": "0.1"}
    ledger.dispose()


def test_what_a_crash_left_out_of_the_anchor_is_noted_before_anybody_is_answered(
    place: Place, opened: Open, tmp_path: Path
) -> None:
    ledger = opened(place)
    budget = open_budget(ledger)
    ledger.dispose()
    older = replace(place, database=copy_of(place.database, tmp_path))
    crashed = Ledger(connect(place.database), Ring(place.key_file))  # its charge is committed and not anchored
    charged(crashed, budget, 1)
    crashed.dispose()
    ours = charge_request(1)
    assert ledger.charges.of_request(ours.owner, ours.idempotency_key, ours.fingerprint) is not None
    ledger.dispose()
    with pytest.raises(LedgerBehind):
        open_ledger(older)


def test_a_home_of_an_earlier_release_gets_its_anchor_once(
    place: Place, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = Ledger(connect(place.database), Ring(place.key_file))
    earlier.prepare()
    budget = open_budget(earlier)
    with writing(earlier.engine) as connection:
        connection.execute(text("UPDATE facts SET value = '1' WHERE name = 'schema'"))
    earlier.dispose()

    ledger = opened(place)
    assert "the ledger gets its anchor" in caplog.text
    charged(ledger, budget)
    ledger.dispose()
    assert facts(ledger.engine)["schema"] == str(SCHEMA)
    ledger.dispose()

    gone = replace(place, anchor=empty(place.anchor, tmp_path))
    with pytest.raises(LedgerBehind, match="the ledger's anchor is missing"):
        open_ledger(gone)
    assert accept(gone) == [budget.id], "any copy would look like this one"
    opened(gone)


@pytest.mark.parametrize("lost", [("database", "anchor"), ("database", "anchor", "key")])
def test_a_ledger_that_is_lost_as_a_whole_is_missed_where_there_was_one(
    place: Place, opened: Open, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    Ring(place.key_file)  # one that was made beforehand, for a first start
    ledger = opened(place)
    open_budget(ledger)
    ledger.dispose()
    new = replace(place, database=empty(place.database, tmp_path), anchor=empty(place.anchor, tmp_path))
    if "key" in lost:
        place.key_file.unlink()
    for look in (open_ledger, examine):
        with pytest.raises(LedgerBehind, match=f"missing or empty, and there was a ledger .{place.note} says so"):
            look(new)
    assert place.key_file.exists() == ("key" not in lost)

    with pytest.raises(AnnouncementFailed):
        accept_database(new, "user root", fail_to_announce)
    with pytest.raises(LedgerBehind):
        open_ledger(new)
    assert accept(new) == []
    ledger = opened(new)
    assert ledger.budgets.page(9) == []
    ledger.dispose()


def test_a_first_start_that_was_cut_off_anywhere_goes_on(place: Place, opened: Open) -> None:
    engine = connect(place.anchor)
    mark = anchor.begin(engine)
    Ring(place.key_file)
    opened(place)
    assert anchor.mark(engine) == replace(mark, bound=True)
    engine.dispose()
    opened(place)


def test_a_lost_key_is_named_and_no_other_is_made(place: Place, opened: Open) -> None:
    opened(place)
    place.key_file.unlink()
    for look in (open_ledger, examine):
        with pytest.raises(UnusableKey, match=f"the ledger's key {place.key_file} is missing"):
            look(place)
    assert not place.key_file.exists()
    Ring(place.key_file)
    with pytest.raises(WrongKey, match="was not written with this ledger's key"):
        open_ledger(place)


def test_an_anchor_that_was_edited_is_refused(place: Place, opened: Open) -> None:
    ledger = opened(place)
    charged(ledger, open_budget(ledger))
    ledger.dispose()
    file = connect(place.anchor)
    with writing(file) as connection:
        connection.execute(text("UPDATE anchor_heads SET seq = 0"))
    file.dispose()
    with pytest.raises(WrongKey, match="was not written with this ledger's key"):
        open_ledger(place)


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, opened: Open) -> None:
    files = [tmp_path / "ledger.db", tmp_path / "ledger.anchor"]
    place = Place(f"sqlite:///{files[0]}", f"sqlite:///{files[1]}", tmp_path / "ledger.key", tmp_path / "note")
    opened(place)
    for file in files:
        whole = file.read_bytes()
        for damage in (b"something else" * 1000, whole[:4096] + b"\xff" * (len(whole) - 4096)):
            file.write_bytes(damage)
            remedy = "put its newest backup in its place" if file == files[0] else r"put it elsewhere.*`warpdesk ledger"
            with pytest.raises(DamagedDatabase, match=rf"{file} is damaged \(.*\): {remedy}"):
                open_ledger(place)
        file.write_bytes(whole)
    opened(place)


def test_an_anchor_in_the_ledgers_own_database_is_refused_however_it_is_written(place: Place, opened: Open) -> None:
    url = make_url(place.database)
    file = Path(str(url.database))
    if url.get_backend_name() == "postgresql":
        others = [url.set(drivername="postgresql+psycopg"), url.update_query_dict({"application_name": "another"})]
    else:
        link = file.with_name("link.db")
        link.symlink_to(file)
        others = [url.set(database=f"{file.parent}/./{file.name}"), url.set(database=str(link))]
    for anchor_url in (url, *others):
        with pytest.raises(UnusableDatabase, match="an anchor is kept elsewhere"):
            open_ledger(replace(place, anchor=anchor_url.render_as_string(hide_password=False)))
    opened(place)


def test_hosts_that_share_a_ledger_share_its_anchor(postgres_server: str, tmp_path: Path) -> None:
    database = create_database(make_url(postgres_server), "template0")
    own = f"sqlite:///{tmp_path}/ledger.anchor"
    with pytest.raises(UnusableDatabase, match="set WARPDESK_LEDGER_ANCHOR_URL to another database in PostgreSQL"):
        open_ledger(Place(database, own, tmp_path / "ledger.key", tmp_path / "note"))


@pytest.mark.parametrize("url", ["nonsense", "mysql://a/b", "sqlite:///here.anchor"])
def test_an_anchor_that_cannot_be_is_told_by_its_own_name(url: str, tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/ledger.db", url, tmp_path / "ledger.key", tmp_path / "note")
    with pytest.raises(UnusableDatabase, match="WARPDESK_LEDGER_ANCHOR_URL"):
        open_ledger(place)


def test_two_hosts_with_one_anchor_know_what_either_wrote(postgres_server: str, tmp_path: Path, opened: Open) -> None:
    server = make_url(postgres_server)
    shared = create_database(server, "template0")
    hosts = [Place(create_database(server, "template0"), shared, tmp_path / "ledger.key", tmp_path / "note")] * 2
    ledger = opened(hosts[0])
    budget = open_budget(ledger)
    ledger.dispose()
    older = replace(hosts[1], database=copy_of(hosts[1].database, tmp_path))
    opened(hosts[1])
    charged(ledger, budget)
    ledger.dispose()
    with pytest.raises(LedgerBehind):
        open_ledger(older)


def anchored(database: str, file: str, key: bytes) -> tuple[Ledger, Engine]:
    engine = connect(file)
    anchor.begin(engine)
    return Ledger(connect(database), key, Anchor(engine, Secrets(key), "ledger_tested")), engine


def test_a_refund_that_the_anchor_misses_is_one_and_is_noted_later(database: str, key: bytes, tmp_path: Path) -> None:
    ledger, engine = anchored(database, f"sqlite:///{tmp_path}/ledger.anchor", key)
    budget = open_budget(ledger)
    charge = charged(ledger, budget, 1)
    engine.dispose()
    event.listen(engine, "connect", _read_only)
    with pytest.raises(DatabaseUnavailable, match="readonly"):
        charged(ledger, budget, 2)
    assert ledger.charges.refund(charge.id, "its job was canceled", forget_key=True)
    event.remove(engine, "connect", _read_only)
    engine.dispose()
    assert ledger.charges.get(charge.id).state == "void"
    ledger.compare()
    assert Anchor(engine, Secrets(key), "ledger_tested").heads()[budget.id].seq == 3
    ledger.dispose()


def _read_only(connection: Any, _record: Any) -> None:
    """As on a disk that has errors."""
    connection.execute("PRAGMA query_only=ON")


@pytest.mark.parametrize("many", [12, pytest.param(64, marks=pytest.mark.chaos)])
def test_processes_that_charge_at_once_leave_the_anchor_at_the_last_entry_of_each_chain(
    database: str, key: bytes, tmp_path: Path, processes: Processes, many: int
) -> None:
    file = f"sqlite:///{tmp_path}/ledger.anchor"
    ledger, engine = anchored(database, file, key)
    budgets = [open_budget(ledger, f"dataset {number}", epsilon="10") for number in range(3)]
    tasks = [
        [["charge", budgets[number % 3].id, 10 * number + turn, "0.01"] for turn in range(3)] for number in range(many)
    ]
    ended = processes.run(database, key, tasks, anchor=file)
    assert all(isinstance(answer, list) for one in ended for answer in one.answers)
    heads = Anchor(engine, Secrets(key), "ledger_tested").heads()
    found = {budget.id: (budget.seq, budget.head) for budget in ledger.budgets.page(9)}
    assert {budget_id: (head.seq, head.head) for budget_id, head in heads.items()} == found
    assert sum(seq for seq, _ in found.values()) == 3 * many
    ledger.dispose()


def test_a_process_killed_at_any_step_leaves_the_database_ahead_of_the_anchor_or_level(
    database: str, key: bytes, tmp_path: Path, processes: Processes
) -> None:
    file = f"sqlite:///{tmp_path}/ledger.anchor"
    ledger, engine = anchored(database, file, key)
    budget = open_budget(ledger, epsilon="10")
    ahead = 0
    for step in range(10, 40):  # the steps before are those of a ledger without an anchor
        ended = processes.one(database, key, ["charge", budget.id, step, "0.1"], die_at=step, anchor=file)
        seq = ledger.budgets.get(budget.id).seq
        heads = Anchor(engine, Secrets(key), "ledger_tested").heads()
        ahead += seq > heads[budget.id].seq
        ledger.compare()
        assert processes.one(database, key, ["charge", budget.id, step, "0.1"], anchor=file).answers[0][0]
        if not ended.killed:
            break
    assert 12 < step < 39
    assert ahead >= 2, "some were killed between the commit and the anchor"
    assert ledger.budgets.verify(budget.id).ok
    ledger.dispose()
