"""Verification of a privacy budget: its chain, its sums, and the rows of its charges.

Rows that may never change are checked by their hashes, the others by their seals, which need the ledger's key.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from warpdesk_server.privacy.amounts import minus, plus, read, shown, within
from warpdesk_server.privacy.chain import Entry, canonical, genesis
from warpdesk_server.privacy.rules import Rules
from warpdesk_server.privacy.seeds import Secrets
from warpdesk_server.privacy.tables import CHARGES, ENTRIES, OUTBOX, REQUESTS, SEEDS, Row

_AT_A_TIME = 1000  # rows in memory


@dataclass(frozen=True)
class Verified:
    """The result of verifying a privacy budget in the ledger. If it failed, the first bad entry (0: the budget's own
    row) and the reason."""

    ok: bool
    entries: int
    head: str
    first_bad: int | None = None
    reason: str | None = None


class _Misfit(Exception):
    pass


def verify(connection: Connection, budget: Row, secrets: Secrets) -> Verified:
    """Verify a privacy budget: read every chain entry with its charge's rows, in one consistent transaction."""
    at = 0
    try:
        _must(budget["seal"] == secrets.seal("budget", budget), "the budget's row was changed")
        prev, total = genesis(budget), read(budget["total"])
        spent = dict.fromkeys(total, 0)
        charges = 0
        closed = False
        void: dict[str, tuple[int, Entry]] = {}  # charges whose refund is still to come
        for at, row in enumerate(_rows(connection, budget["id"]), start=1):
            entry = Entry.of({column.name: row[column.name] for column in ENTRIES.c})
            _must(entry.seq == at, "the entry is missing")
            _must(entry.prev == prev, "it does not follow the entry before it")
            _must(entry.hash == entry.hashed() and row["amounts"] == canonical(entry.amounts), "it was changed")
            if entry.kind == "charge":
                charges += 1
                _must(not closed, "it was charged after the budget was closed")
                _must(_fits(entry, row, secrets), "what is kept beside it was changed")
                if row["state"] == "void":
                    void[entry.charge_id] = (at, entry)
                spent = plus(spent, read(row["amounts"]))
                _must(within(spent, total), "it spends more than the budget holds")
            elif entry.kind == "close":
                closed = True
                _must(not any(read(row["amounts"]).values()), "it closes the budget and changes what was spent")
                _must(budget["state"] == "closed", "it closes the budget, which is open")
            elif entry.kind == "rules":
                _must(not any(read(row["amounts"]).values()), "it changes the rules and what was spent")
                Rules.of(entry.reason)
            else:
                _, charged = void.pop(entry.charge_id, (0, None))
                _must(charged is not None and charged.amounts == entry.amounts, "it gives back what was not taken")
                spent = minus(spent, read(row["amounts"]))
            prev = entry.hash
        at += 1
        _must(at > budget["seq"], "the entry is missing")
        _must(at <= budget["seq"] + 1, "there are more entries than the budget has")
        at = min((made for made, _ in void.values()), default=0)
        _must(not void, "it is void and was not given back")
        _must(prev == budget["head"] and canonical(shown(spent)) == budget["spent"], "the budget's row does not add up")
        beside = connection.scalar(select(func.count()).where(CHARGES.c.budget_id == budget["id"]))
        _must(beside == charges, "there are charges without an entry")
    except (_Misfit, ValueError, KeyError, TypeError) as misfit:
        return Verified(False, budget["seq"], budget["head"], at, str(misfit))
    return Verified(True, budget["seq"], prev)


def _must(so: bool, otherwise: str) -> None:
    """Raise _Misfit with this sentence, unless the condition holds for the ledger."""
    if not so:
        raise _Misfit(otherwise)


def _rows(connection: Connection, budget_id: str) -> Iterator[Row]:
    """A privacy budget's chain entries in order, each joined with the rows of its charge, if it has any."""
    query = (
        select(
            ENTRIES,
            *(column.label(f"charge.{column.name}") for column in CHARGES.c),
            CHARGES.c.state,
            SEEDS.c.wrapped,
            OUTBOX.c.job_id.label("outbox.job_id"),
            OUTBOX.c.job.label("outbox.job"),
            OUTBOX.c.at.label("outbox.at"),
            REQUESTS.c.owner.label("request.owner"),
            REQUESTS.c.idempotency_key,
            REQUESTS.c.fingerprint,
        )
        .outerjoin(CHARGES, CHARGES.c.id == ENTRIES.c.charge_id)
        .outerjoin(SEEDS, SEEDS.c.charge_id == ENTRIES.c.charge_id)
        .outerjoin(OUTBOX, OUTBOX.c.charge_id == ENTRIES.c.charge_id)
        .outerjoin(REQUESTS, REQUESTS.c.charge_id == ENTRIES.c.charge_id)
        .where(ENTRIES.c.budget_id == budget_id)
        .order_by(ENTRIES.c.seq)
        .execution_options(yield_per=_AT_A_TIME)
    )
    with connection.execute(query) as result:
        yield from result.mappings()


def _fits(entry: Entry, row: Row, secrets: Secrets) -> bool:
    """Whether a charge's state, seed, job and idempotency key match its chain entry."""
    charge = {column.name: row[f"charge.{column.name}"] for column in CHARGES.c}
    if charge["id"] is None or charge["budget_id"] != entry.budget_id:
        return False
    if charge["seal"] != secrets.seal("charge", charge):
        return False
    live = charge["state"] in ("charged", "claimed")
    if live != (row["wrapped"] is not None) or live != (row["outbox.job"] is not None):
        return False
    if live:
        secrets.unwrap(row["wrapped"], entry.charge_id)
        queued = (row["outbox.job_id"], secrets.digest("job", row["outbox.job"]), row["outbox.at"])
        if queued != (entry.job_id, entry.job, entry.at):
            return False
    if row["fingerprint"] is None:
        return bool(charge["forgotten"])
    if charge["forgotten"]:
        return False
    request = (row["request.owner"], row["idempotency_key"], row["fingerprint"])
    return entry.owner == request[0] and entry.request == secrets.digest("request", *request)
