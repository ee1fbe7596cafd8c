"""The ledger: privacy budgets of datasets, and what their releases took from them.

A charge is written with its seed, the job to queue and the caller's idempotency key in one transaction, before any
noise is drawn. From then on it goes one way: charged, claimed (somebody has the noise key), then released or failed;
or from charged to void, which gives the amount back. The noise key of a charge is the same at every claim, so that a
job that is run again gives the same answer; the seed goes in the transaction that knows of the answer.
"""

import hmac
import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from sqlalchemy import Connection, Engine, delete, func, insert, literal_column, or_, select, update
from sqlalchemy.exc import IntegrityError

from warpdesk.models import Accountant, Neighbouring
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.accountants import NotHeld as NotHeld
from warpdesk_server.privacy.accountants import cost, total
from warpdesk_server.privacy.amounts import Amounts, Name, minus, plus, read, shown, within
from warpdesk_server.privacy.amounts import NotAnAmount as NotAnAmount
from warpdesk_server.privacy.anchor import Anchor, Head
from warpdesk_server.privacy.chain import Entry as Entry
from warpdesk_server.privacy.chain import Relation, canonical, genesis
from warpdesk_server.privacy.database import FACTS, create_tables, one_at_a_time, reading, truncate_log, writing
from warpdesk_server.privacy.database import DatabaseUnavailable as DatabaseUnavailable
from warpdesk_server.privacy.dataset import NotADataset as NotADataset
from warpdesk_server.privacy.dataset import normal
from warpdesk_server.privacy.errors import Refused
from warpdesk_server.privacy.rules import NO_RULES, Rules
from warpdesk_server.privacy.rules import NotAllowed as NotAllowed
from warpdesk_server.privacy.seeds import SIZE, Ring, Secrets, noise_key
from warpdesk_server.privacy.seeds import WrongKey as WrongKey
from warpdesk_server.privacy.tables import BUDGETS, CHARGES, ENTRIES, OUTBOX, REQUESTS, SEEDS, Row
from warpdesk_server.privacy.verify import Verified as Verified
from warpdesk_server.privacy.verify import verify

State = Literal["charged", "claimed", "released", "failed", "void"]

_OF_ITS_PLACE = ("budget_id", "seq", "at", "prev", "hash")  # in the chain, where the rest is of the charge
_TOLD_LATER = ("reason", "outcome", "answer")


class UnknownBudget(Refused):
    code = "unknown-budget"
    pointer = ""


class NoRelease(ValueError):
    """A charge on which nothing may be released. `code` is that of the job's failure."""

    code: ClassVar[str]


class UnknownCharge(NoRelease):
    code = "charge-ended"


class LedgerBehind(DatabaseUnavailable):
    """The database is not the one that was used last: older, empty or another. The message says what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: put the newest copy of the ledger's database back, or run `warpdesk ledger accept`, which closes "
            "every budget whose later charges are not known"
        )


class Tampered(NoRelease):
    """A row is not as the ledger wrote it."""

    code = "charge-changed"


class DatasetTaken(Refused):
    """The dataset, or one whose name differs in case, blanks or encoding alone, has an open budget, `budget_id`."""

    code = "dataset-taken"
    pointer = "/dataset"

    def __init__(self, dataset: str, written: str, budget_id: str) -> None:
        alias = "" if written == dataset else f", as {written!r},"
        super().__init__(f"the dataset {dataset!r} has{alias} the open budget {budget_id}: close that one first")
        self.dataset = dataset
        self.budget_id = budget_id


class BudgetClosed(Refused):
    code = "budget-closed"
    pointer = ""


class OverBudget(Refused):
    """More is asked than remains; both are exact decimal strings by name. The budget is as it was."""

    code = "budget-exceeded"
    pointer = ""

    def __init__(self, budget_id: str, asked: dict[Name, str], remaining: dict[Name, str]) -> None:
        wants = " and ".join(f"{name} {asked[name]}" for name in asked)
        super().__init__(
            f"the release costs {wants}; of {budget_id} there remains "
            + " and ".join(f"{name} {remaining[name]}" for name in remaining)
        )
        self.asked = asked
        self.remaining = remaining


class KeyReused(Refused):
    """The idempotency key belongs to another request."""

    code = "idempotency-key-reused"


class Changed(NoRelease):
    """What is to be released is not what was charged; `what` names the parts."""

    code = "charge-changed"

    def __init__(self, charge_id: str, what: tuple[str, ...]) -> None:
        super().__init__(
            f"{', '.join(what)} of {charge_id} changed since it was charged: nothing may be released on it"
        )
        self.what = what


class NotClaimed(NoRelease):
    """An answer for a charge whose noise key nobody asked for."""

    code = "charge-ended"


class ChargeEnded(NoRelease):
    """The charge is over, in `state`: there is no noise key for it any more."""

    code = "charge-ended"

    def __init__(self, charge_id: str, state: State, reason: str | None) -> None:
        super().__init__(f"{charge_id} is {state}" + (f": {reason}" if reason else ""))
        self.state = state
        self.reason = reason


@dataclass(frozen=True)
class NewBudget:
    """What a budget holds: epsilon (pure), epsilon and delta (approx), or rho (zcdp), as decimal strings."""

    name: str
    dataset: str
    accountant: Accountant
    neighbouring: Neighbouring
    created_by: str
    epsilon: str | None = None
    delta: str | None = None
    rho: str | None = None
    rules: Rules = NO_RULES


@dataclass(frozen=True)
class Budget:
    """Amounts are exact decimal strings by name, times whole microseconds since 1970."""

    id: str
    name: str
    dataset: str
    accountant: Accountant
    neighbouring: Neighbouring
    total: dict[Name, str]
    spent: dict[Name, str]
    remaining: dict[Name, str]
    state: Literal["open", "closed"]
    seq: int  # of the last entry of its chain
    head: str  # its hash
    created_by: str
    created_at: int


@dataclass(frozen=True)
class Quote:
    """What a release would cost, whether that fits now, and what would remain (or remains, where it does not fit)."""

    fits: bool
    cost: dict[Name, str]
    remaining: dict[Name, str]


@dataclass(frozen=True)
class Order:
    """What is charged for. params, inputs and job are JSON texts; version is that of the sampler."""

    owner: str
    idempotency_key: str
    fingerprint: str
    operation: str
    params: str = field(repr=False)
    inputs: str = field(repr=False)
    version: str
    job_id: str
    job: str = field(repr=False)


@dataclass(frozen=True)
class Charge:
    """`hash` is that of its entry, `outcome` (once released) says where the answer lies."""

    id: str
    budget_id: str
    seq: int
    hash: str
    state: State
    amounts: dict[Name, str]
    relation: Relation
    owner: str
    operation: str
    job_id: str
    at: int
    reason: str | None
    outcome: str | None


@dataclass(frozen=True)
class Charged:
    charge: Charge
    replayed: bool  # it was charged before, for the same request


@dataclass(frozen=True)
class NoiseKey:
    charge_id: str
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Released:
    outcome: str
    digest: str  # keyed, of the answer


@dataclass(frozen=True)
class Pending:
    """A job that may not have been queued, or that has not ended."""

    charge_id: str
    budget_id: str
    state: State
    job_id: str
    job: str = field(repr=False)
    at: int


class Ledger:
    """All that is known of budgets. Any number of processes may have one over the same database.

    Methods raise DatabaseUnavailable, too, where it does not answer: then the step is done whole or not at all, and
    asking again with the same words finishes it.
    """

    def __init__(self, engine: Engine, key: Ring | bytes, anchor: Anchor | None = None) -> None:
        """Whoever writes chains has an anchor, which is compared first and written last. Workers need none."""
        self.engine = engine
        self._secrets = Secrets(key)
        self._anchor = anchor
        self._found: dict[str, int] | None = None  # the last entry of each budget when its anchor was first compared

    def prepare(self) -> None:
        """Make the tables that are missing, and see that the key is that of the database. Raises WrongKey where it is
        not, and UnusableDatabase."""
        create_tables(self.engine)
        with writing(self.engine) as connection:
            query = select(FACTS.c.value).where(FACTS.c.name == "key")
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("LOCK TABLE facts IN EXCLUSIVE MODE")
            found = connection.scalar(query)
            if found is None:
                connection.execute(insert(FACTS).values(name="key", value=self._secrets.digest("check")))
            else:
                self.check_key(found)

    def check_key(self, found: str) -> None:
        """Raise WrongKey where the database's fact `key` is of another key."""
        if not hmac.compare_digest(found, self._secrets.digest("check")):
            raise WrongKey(
                "the ledger's database was made with another key: put that key file back, "
                "without it the open charges cannot be released"
            )

    def dispose(self) -> None:
        """Close all connections, the anchor's too."""
        self.engine.dispose()
        if self._anchor is not None:
            self._anchor.dispose()

    def compare(self, *, note: bool = True) -> None:
        """Compare every budget with the anchor, and note what a crash left out of it. Raises LedgerBehind."""
        if self._anchor is None:
            return
        heads = self._anchor.heads()  # before the database, which goes on meanwhile
        with reading(self.engine) as connection:
            rows = {row["id"]: row for row in connection.execute(select(BUDGETS)).mappings()}
            for head in heads.values():
                if wrong := _misfit(connection, head, rows.get(head.budget_id)):
                    raise LedgerBehind(wrong)
        if self._found is None:
            self._found = {budget_id: row["seq"] for budget_id, row in rows.items()}
        for row in rows.values() if note else ():
            if row["id"] not in heads or row["seq"] > heads[row["id"]].seq:
                self._anchor.note(row)

    def accept(
        self, heads: Mapping[str, Head], name: str, by: str, tell: Callable[[list[str]], None], *, others: bool
    ) -> list[str]:
        """Take the database as that of the ledger `name`: close each budget that does not go on from its head, and
        enter those that are missing as closed; with `others` also close those without a head.

        Returns the ids of those that were closed, which `tell` has been given before.
        """
        assert self._anchor is not None  # noqa: S101
        closed = []
        with writing(self.engine) as connection:
            lock = select(BUDGETS).with_for_update()
            there = {row["id"] for row in connection.execute(lock).mappings()}
            for budget_id in heads.keys() - there:
                self._insert(connection, json.loads(heads[budget_id].created), "closed")
            for row in connection.execute(lock).mappings().all():
                head = heads.get(row["id"])
                known = row if row["id"] in there else None
                wrong = _misfit(connection, head, known) if head else others and f"{row['id']} is in no anchor"
                if wrong and (row["state"] == "open" or known is None):
                    self._close(connection, row, by, f"{wrong}; an administrator accepted the database")
                    closed.append(row["id"])
            tell(closed)
            _name(connection, name)
            # Before the commit: after a crash in between the database is behind again, and the same ids are told.
            self._anchor.replace(list(connection.execute(select(BUDGETS)).mappings()))
        return closed

    def name(self, ledger: str) -> None:
        """Write the ledger's id, where the database has none."""
        with writing(self.engine) as connection:
            _name(connection, ledger)

    def create(self, new: NewBudget) -> Budget:
        """Open a budget for a dataset that has no open one. Raises NotAnAmount, NotADataset, DatasetTaken."""
        form = normal(new.dataset)
        amounts = total(new.accountant, {"epsilon": new.epsilon, "delta": new.delta, "rho": new.rho})
        budget: dict[str, Any] = {
            "id": f"budget_{secrets.token_hex(16)}",
            "name": new.name,
            "dataset": new.dataset,
            "accountant": new.accountant,
            "neighbouring": new.neighbouring,
            "total": canonical(shown(amounts)),
            "created_by": new.created_by,
            "created_at": _now(),
        }
        self.compare()  # an older database may lack a budget of the dataset
        with writing(self.engine) as connection:
            one_at_a_time(connection)
            for other in connection.execute(select(BUDGETS.c.id, BUDGETS.c.dataset).where(BUDGETS.c.state == "open")):
                if _alike(other.dataset, form):
                    raise DatasetTaken(new.dataset, other.dataset, other.id)
            made = self._insert(connection, budget, "open")
            if new.rules != NO_RULES:
                made = self._append_rules(connection, made, new.rules, new.created_by)
        self._note(made)
        return _budget(made)

    def _insert(self, connection: Connection, created: dict[str, Any], state: Literal["open", "closed"]) -> Row:
        """Write the row of a budget without an entry."""
        none = canonical(shown(dict.fromkeys(read(created["total"]), 0)))
        budget = {**created, "state": state, "spent": none, "seq": 0, "head": genesis(created)}
        budget["seal"] = self._secrets.seal("budget", budget)
        connection.execute(insert(BUDGETS).values(budget))
        return budget

    def budget(self, budget_id: str) -> Budget:
        """Raises UnknownBudget."""
        with reading(self.engine) as connection:
            return _budget(_budget_row(connection, budget_id))

    def budgets(self, limit: int, after: str | None = None) -> list[Budget]:
        """In the order they were created, those after the budget `after`."""
        query = select(BUDGETS).order_by(BUDGETS.c.created_at, BUDGETS.c.id).limit(limit)
        with reading(self.engine) as connection:
            if after is not None:
                last = _budget_row(connection, after)
                at, key = BUDGETS.c.created_at, BUDGETS.c.id
                query = query.where((at > last["created_at"]) | ((at == last["created_at"]) & (key > last["id"])))
            return [_budget(row) for row in connection.execute(query).mappings()]

    def open_budgets(self, limit: int) -> tuple[list[Budget], int]:
        """Those that were opened first, and how many more there are."""
        opened = BUDGETS.c.state == "open"
        query = select(BUDGETS).where(opened).order_by(BUDGETS.c.created_at, BUDGETS.c.id).limit(limit)
        with reading(self.engine) as connection:
            found = [_budget(row) for row in connection.execute(query).mappings()]
            count = connection.scalar(select(func.count()).select_from(BUDGETS).where(opened)) or 0
        return found, count - len(found)

    def close(self, budget_id: str, by: str) -> Budget:
        """Take no more charges; those made go on, and may be refunded. Again: nothing. Raises UnknownBudget."""
        with writing(self.engine) as connection:
            row = self._locked_budget(connection, budget_id)
            if row["state"] == "open":
                row = self._close(connection, row, by, "")
        self._note(row)
        return _budget(row)

    def rules(self, budget_id: str) -> Rules:
        """Raises UnknownBudget."""
        with reading(self.engine) as connection:
            _budget_row(connection, budget_id)
            return _rules(connection, budget_id)

    def change_rules(self, budget_id: str, rules: Rules, by: str) -> None:
        """Replace the rules; charges that were made stay. Raises UnknownBudget, BudgetClosed."""
        with writing(self.engine) as connection:
            row = self._locked_budget(connection, budget_id)
            _open_account(row)
            if rules != _rules(connection, budget_id):
                row = self._append_rules(connection, row, rules, by)
        self._note(row)

    def _append_rules(self, connection: Connection, budget: Row, rules: Rules, by: str) -> Row:
        return self._append_act(connection, budget, "rules", f"rules_{secrets.token_hex(16)}", by, rules.text, {})

    def _close(self, connection: Connection, budget: Row, by: str, reason: str) -> Row:
        return self._append_act(connection, budget, "close", budget["id"], by, reason, {"state": "closed"})

    def _append_act(
        self, connection: Connection, budget: Row, kind: str, name: str, by: str, reason: str, changes: dict[str, Any]
    ) -> Row:
        """Append to a locked budget what an administrator does with it."""
        no_request = dict.fromkeys(("operation", "params", "inputs", "version", "request", "job", "job_id"), "")
        _, row = self._append(
            connection,
            budget,
            changes,
            kind=kind,
            charge_id=name,
            owner=by,
            amounts=shown(dict.fromkeys(read(budget["total"]), 0)),
            relation="declared",
            reason=reason,
            **no_request,
        )
        return row

    def quote(self, budget_id: str, spend: Spend, owner: str, inputs: Collection[str]) -> Quote:
        """What a charge would do now. Raises UnknownBudget, BudgetClosed, NotAllowed, NotHeld."""
        with reading(self.engine) as connection:
            row = _budget_row(connection, budget_id)
            _rules(connection, budget_id).check(budget_id, owner, inputs)
        account = _open_account(row)
        asked = cost(account.accountant, account.neighbouring, spend)
        fits = within(asked, account.remaining)
        return Quote(fits, shown(asked), shown(minus(account.remaining, asked) if fits else account.remaining))

    def charge(self, budget_id: str, spend: Spend, order: Order) -> Charged:
        """Take what a release costs, once for each idempotency key of an owner.

        The same request again is given its charge, whatever became of it. Raises KeyReused for another request,
        UnknownBudget, BudgetClosed, NotAllowed, NotHeld and OverBudget; nothing is written then.
        """
        try:
            return self._charge(budget_id, spend, order)
        except IntegrityError:
            # The same key came to two budgets at once: it is there now.
            return self._charge(budget_id, spend, order)

    def _charge(self, budget_id: str, spend: Spend, order: Order) -> Charged:
        # All that can be is made ready before the budget is locked: others wait for it.
        named, fingerprint = self._request(order.owner, order.idempotency_key, order.fingerprint)
        asked_for = {
            **self._digests(order.params, order.inputs, order.version),
            "request": self._secrets.digest("request", order.owner, named, fingerprint),
            "job": self._secrets.digest("job", order.job),
        }
        charge_id = f"charge_{secrets.token_hex(16)}"
        wrapped = self._secrets.wrap(secrets.token_bytes(SIZE), charge_id)
        charge = {"id": charge_id, "budget_id": budget_id, "state": "charged", "forgotten": False}
        charge |= dict.fromkeys(_TOLD_LATER)
        charge["seal"] = self._secrets.seal("charge", charge)
        request = {"owner": order.owner, "idempotency_key": named}
        with writing(self.engine) as connection:
            row = self._locked_budget(connection, budget_id)
            if (earlier := self._known(connection, order.owner, named, fingerprint)) is not None:
                return Charged(earlier, replayed=True)
            account = _open_account(row)
            _rules(connection, budget_id).check(budget_id, order.owner, json.loads(order.inputs).values())
            asked = cost(account.accountant, account.neighbouring, spend)
            if not within(asked, account.remaining):
                raise OverBudget(budget_id, shown(asked), shown(account.remaining))
            entry, row = self._append(
                connection,
                row,
                {"spent": canonical(shown(plus(account.spent, asked)))},
                kind="charge",
                charge_id=charge_id,
                owner=order.owner,
                operation=order.operation,
                amounts=shown(asked),
                relation=spend.neighbouring or "declared",
                **asked_for,
                job_id=order.job_id,
                reason="",
            )
            outbox = {"charge_id": charge_id, "job_id": order.job_id, "job": order.job, "at": entry.at}
            connection.execute(insert(CHARGES).values(charge))
            connection.execute(insert(SEEDS).values(charge_id=charge_id, wrapped=wrapped))
            connection.execute(insert(OUTBOX).values(outbox))
            connection.execute(insert(REQUESTS).values(**request, fingerprint=fingerprint, charge_id=charge_id))
        self._note(row)
        return Charged(_charge(entry, charge), replayed=False)

    def known(self, owner: str, idempotency_key: str, fingerprint: str) -> Charge | None:
        """What was charged for this request before. Raises KeyReused for another with the same key."""
        request = self._request(owner, idempotency_key, fingerprint)
        with reading(self.engine) as connection:
            return self._known(connection, owner, *request)

    def find(self, charge_id: str) -> Charge:
        """Raises UnknownCharge."""
        with reading(self.engine) as connection:
            return _find(connection, charge_id)

    def claim(self, charge_id: str, *, operation: str, params: str, inputs: str, version: str) -> NoiseKey | Released:
        """Give out the noise key, the same each time; once there is an answer, where it lies.

        From the first time on the charge cannot be refunded. Raises UnknownCharge, Changed where anything is not as it
        was charged, ChargeEnded where it failed or is void.
        """
        digests = self._digests(params, inputs, version)
        with writing(self.engine) as connection:
            charge = self._locked(connection, charge_id)
            entry = vars(_entry(connection, charge_id))
            told = {"operation": operation, **digests}
            changed = tuple(name for name in told if entry[name] != told[name])
            if changed:
                raise Changed(charge_id, changed)
            if charge["state"] == "released":
                return Released(charge["outcome"], charge["answer"])
            if charge["state"] in ("failed", "void"):
                raise ChargeEnded(charge_id, charge["state"], charge["reason"])
            wrapped = connection.execute(select(SEEDS.c.wrapped).where(SEEDS.c.charge_id == charge_id)).scalar_one()
            seed = self._secrets.unwrap(wrapped, charge_id)
            if charge["state"] == "charged":
                self._turn(connection, charge, state="claimed")
        return NoiseKey(charge_id, noise_key(seed, charge_id, digests["params"], digests["inputs"], digests["version"]))

    def release(self, charge_id: str, outcome: str, digest: bytes) -> Released:
        """Say that the answer with this digest lies at `outcome` (JSON); seed and outbox row go with it.

        Again with the same digest: the first outcome. Raises Changed for another answer, NotClaimed, ChargeEnded,
        UnknownCharge.
        """
        answer = self._secrets.digest("answer", digest.hex())
        with writing(self.engine) as connection:
            charge = self._locked(connection, charge_id)
            if charge["state"] == "released":
                if not hmac.compare_digest(charge["answer"], answer):
                    raise Changed(charge_id, ("answer",))
                return Released(charge["outcome"], charge["answer"])
            self._must_be_claimed(charge)
            self._turn(connection, charge, state="released", outcome=outcome, answer=answer)
        self.erase()
        return Released(outcome, answer)

    def fail(self, charge_id: str, reason: str) -> None:
        """Give up a claimed charge, which stays spent: whoever has its noise key may have shown something. Again:
        nothing. Raises NotClaimed, ChargeEnded, UnknownCharge."""
        with writing(self.engine) as connection:
            charge = self._locked(connection, charge_id)
            if charge["state"] == "failed":
                return
            self._must_be_claimed(charge)
            self._turn(connection, charge, state="failed", reason=reason)
        self.erase()

    def void(self, charge_id: str, reason: str, *, forget_key: bool) -> bool:
        """Give back a charge that nobody ever claimed; False for one that somebody did, or may have.

        Claims are in no chain. A database that was older when it was opened may have forgotten those of the charges it
        had then: they are taken for claimed.

        With `forget_key` the idempotency key may be used for another request. Raises UnknownCharge.
        """
        with writing(self.engine) as connection:
            charge = self._locked(connection, charge_id)
            if charge["state"] not in ("charged", "void"):
                return False
            budget = None
            if charge["state"] == "charged" and self._was_found(connection, charge):
                self._turn(connection, charge, state="claimed")
                return False
            if charge["state"] == "charged":
                budget = self._refund(connection, charge, reason)
            else:
                reason = charge["reason"]
            forgotten = forget_key or charge["forgotten"]
            self._turn(connection, charge, state="void", reason=reason, forgotten=forgotten)
            if forgotten:
                connection.execute(delete(REQUESTS).where(REQUESTS.c.charge_id == charge_id))
        if budget is not None:
            # A database without the refund has more spent: it may be noted later, when ledger and anchor are compared.
            with suppress(DatabaseUnavailable):
                self._note(budget)
        self.erase()
        return True

    def _was_found(self, connection: Connection, charge: Row) -> bool:
        """Whether a charge was there when the ledger was opened. Without an anchor nothing is known of the past."""
        if self._found is None:
            return False
        return _entry(connection, charge["id"]).seq <= self._found.get(charge["budget_id"], 0)

    def _refund(self, connection: Connection, charge: Row, reason: str) -> Row:
        row = self._locked_budget(connection, charge["budget_id"])
        entry = _entry(connection, charge["id"])
        same = {name: value for name, value in vars(entry).items() if name not in _OF_ITS_PLACE}
        spent = minus(read(row["spent"]), read(canonical(entry.amounts)))
        changes = {"spent": canonical(shown(spent))}
        return self._append(connection, row, changes, **{**same, "kind": "refund", "reason": reason})[1]

    def pending(self, older_than: float, limit: int) -> list[Pending]:
        """The oldest charges without an end that are `older_than` seconds old, and those that were made before the
        clock was set back."""
        now = _now()
        query = (
            select(OUTBOX, CHARGES.c.budget_id, CHARGES.c.state)
            .join(CHARGES, CHARGES.c.id == OUTBOX.c.charge_id)
            .where(or_(OUTBOX.c.at <= now - int(older_than * 1e6), OUTBOX.c.at > now))
            .order_by(OUTBOX.c.at, OUTBOX.c.charge_id)
            .limit(limit)
        )
        with reading(self.engine) as connection:
            return [Pending(**row) for row in connection.execute(query).mappings()]

    def erase(self) -> bool:
        """Empty SQLite's log of seeds that ended, which each end does unless somebody reads just then. Call it now and
        then. Whether nothing is left."""
        return truncate_log(self.engine)

    def rewrap(self) -> int:
        """Wrap the seeds of all charges that are not over with the newest key; how many there are. Beside a service
        that runs: each is a step of its own, and a charge that ends meanwhile takes its seed along. Raises WrongKey.
        """
        with reading(self.engine) as connection:
            found = connection.execute(select(SEEDS.c.charge_id, SEEDS.c.wrapped)).all()
        for charge_id, wrapped in found:
            again = self._secrets.rewrapped(wrapped, charge_id)
            if again is not None:
                with writing(self.engine) as connection:
                    same = (SEEDS.c.charge_id == charge_id) & (SEEDS.c.wrapped == wrapped)
                    connection.execute(update(SEEDS).where(same).values(wrapped=again))
        self.erase()  # SQLite's log has them as they were
        return len(found)

    def history(self, budget_id: str, after: int, limit: int) -> list[Entry]:
        """The entries of a budget's chain that follow the one numbered `after`. Raises UnknownBudget."""
        query = select(ENTRIES).where(ENTRIES.c.budget_id == budget_id, ENTRIES.c.seq > after)
        with reading(self.engine) as connection:
            _budget_row(connection, budget_id)
            rows = connection.execute(query.order_by(ENTRIES.c.seq).limit(limit)).mappings()
            return [Entry.of(row) for row in rows]

    def verify(self, budget_id: str) -> Verified:
        """Go through a budget's whole chain, and all that is kept beside it. Raises UnknownBudget."""
        with reading(self.engine) as connection:
            return verify(connection, _budget_row(connection, budget_id), self._secrets)

    def _append(self, connection: Connection, budget: Row, changes: dict[str, Any], **fields: Any) -> tuple[Entry, Row]:
        """Write the next entry of a chain whose budget is locked, and change the budget's row with it."""
        entry = Entry(budget_id=budget["id"], seq=budget["seq"] + 1, at=_now(), prev=budget["head"], **fields)
        entry = replace(entry, hash=entry.hashed())
        connection.execute(insert(ENTRIES).values({**vars(entry), "amounts": canonical(entry.amounts)}))
        changes |= {"seq": entry.seq, "head": entry.hash}
        changes["seal"] = self._secrets.seal("budget", {**budget, **changes})
        connection.execute(update(BUDGETS).where(BUDGETS.c.id == budget["id"]).values(changes))
        return entry, {**budget, **changes}

    def _known(self, connection: Connection, owner: str, named: str, fingerprint: str) -> Charge | None:
        """The charge of a request, once it is in the anchor: whoever charged it may have ended before."""
        query = select(REQUESTS).where(REQUESTS.c.owner == owner, REQUESTS.c.idempotency_key == named)
        found = connection.execute(query).mappings().one_or_none()
        if found is None:
            return None
        if not hmac.compare_digest(found["fingerprint"], fingerprint):
            raise KeyReused("the Idempotency-Key was sent before with another body, for which a budget was charged")
        charge = _find(connection, found["charge_id"])
        self._note(_budget_row(connection, charge.budget_id))
        return charge

    def _note(self, budget: Row) -> None:
        """Bring the anchor up to a budget's row that was committed."""
        if self._anchor is not None:
            self._anchor.note(budget)

    def _locked_budget(self, connection: Connection, budget_id: str) -> Row:
        """The row of a budget, which goes on from its anchored head; the one place before all that writes chains."""
        row = _row_of(connection, budget_id, lock=True)
        head = None if self._anchor is None else self._anchor.head(budget_id)
        if head is not None and (wrong := _misfit(connection, head, row)):
            raise LedgerBehind(wrong)
        if row is None:
            raise UnknownBudget(f"there is no budget {budget_id}")
        self._must_be_sealed("budget", row)
        return row

    def _locked(self, connection: Connection, charge_id: str) -> Row:
        query = select(CHARGES).where(CHARGES.c.id == charge_id).with_for_update()
        row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise UnknownCharge(f"there is no charge {charge_id}")
        self._must_be_sealed("charge", row)
        return row

    def _must_be_sealed(self, kind: str, row: Row) -> None:
        if not hmac.compare_digest(row["seal"], self._secrets.seal(kind, row)):
            raise Tampered(f"{row['id']} was changed by somebody without the ledger's key: verify its budget")

    def _must_be_claimed(self, charge: Row) -> None:
        if charge["state"] == "charged":
            raise NotClaimed(f"nobody claimed {charge['id']}")
        if charge["state"] != "claimed":
            raise ChargeEnded(charge["id"], charge["state"], charge["reason"])

    def _turn(self, connection: Connection, charge: Row, **changes: Any) -> None:
        """Put a locked charge into another state; what has ended has neither seed nor job any more."""
        seal = self._secrets.seal("charge", {**charge, **changes})
        connection.execute(update(CHARGES).where(CHARGES.c.id == charge["id"]).values(**changes, seal=seal))
        if changes["state"] != "claimed":
            for table in (SEEDS, OUTBOX):
                connection.execute(delete(table).where(table.c.charge_id == charge["id"]))

    def _request(self, owner: str, idempotency_key: str, fingerprint: str) -> tuple[str, str]:
        """What is kept of a request: it can be known again, and not read or guessed."""
        named = self._secrets.digest("idempotency key", owner, idempotency_key)
        return named, self._secrets.digest("fingerprint", fingerprint)

    def _digests(self, params: str, inputs: str, version: str) -> dict[str, str]:
        told = {"params": params, "inputs": inputs, "version": version}
        return {name: self._secrets.digest(name, text) for name, text in told.items()}


@dataclass(frozen=True)
class _Account:
    """What a budget's row says, in numbers."""

    accountant: Accountant
    neighbouring: Neighbouring
    total: Amounts
    spent: Amounts

    @classmethod
    def of(cls, row: Row) -> "_Account":
        return cls(row["accountant"], row["neighbouring"], read(row["total"]), read(row["spent"]))

    @property
    def remaining(self) -> Amounts:
        return minus(self.total, self.spent)


def _alike(dataset: str, form: str) -> bool:
    with suppress(NotADataset):  # an earlier release took such names
        return normal(dataset) == form
    return False


def _open_account(row: Row) -> _Account:
    if row["state"] != "open":
        raise BudgetClosed(f"{row['id']} is closed")
    return _Account.of(row)


def _row_of(connection: Connection, budget_id: str, *, lock: bool = False) -> Row | None:
    query = select(BUDGETS).where(BUDGETS.c.id == budget_id)
    return connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()


def _budget_row(connection: Connection, budget_id: str) -> Row:
    row = _row_of(connection, budget_id)
    if row is None:
        raise UnknownBudget(f"there is no budget {budget_id}")
    return row


def _rules(connection: Connection, budget_id: str) -> Rules:
    at = (ENTRIES.c.budget_id == budget_id) & (ENTRIES.c.kind == literal_column("'rules'"))  # as the index has it
    text = connection.scalar(select(ENTRIES.c.reason).where(at).order_by(ENTRIES.c.seq.desc()).limit(1))
    return NO_RULES if text is None else Rules.of(text)


def _misfit(connection: Connection, head: Head, budget: Row | None) -> str | None:
    """Why the chain of a budget does not go on from an anchored head, or None."""
    if budget is None:
        return f"{head.budget_id} is missing, of which {head.seq} entries were written"
    if budget["seq"] < head.seq:
        return f"{budget['id']} has {budget['seq']} entries, and {head.seq} were written"
    found = budget["head"]
    if budget["seq"] > head.seq:
        at = (ENTRIES.c.budget_id == budget["id"]) & (ENTRIES.c.seq == head.seq + 1)
        found = connection.scalar(select(ENTRIES.c.prev).where(at))
    if found != head.head:
        return f"entry {head.seq} of {budget['id']} is another than was written"
    return None


def _name(connection: Connection, ledger: str) -> None:
    if connection.scalar(select(FACTS.c.value).where(FACTS.c.name == "ledger")) is None:
        connection.execute(insert(FACTS).values(name="ledger", value=ledger))


def _budget(row: Row) -> Budget:
    account = _Account.of(row)
    told = {name: row[name] for name in ("id", "name", "dataset", "state", "seq", "head", "created_by", "created_at")}
    return Budget(
        accountant=account.accountant,
        neighbouring=account.neighbouring,
        total=shown(account.total),
        spent=shown(account.spent),
        remaining=shown(account.remaining),
        **told,
    )


def _entry(connection: Connection, charge_id: str) -> Entry:
    query = select(ENTRIES).where(ENTRIES.c.charge_id == charge_id, ENTRIES.c.kind == "charge")
    return Entry.of(connection.execute(query).mappings().one())


def _find(connection: Connection, charge_id: str) -> Charge:
    row = connection.execute(select(CHARGES).where(CHARGES.c.id == charge_id)).mappings().one_or_none()
    if row is None:
        raise UnknownCharge(f"there is no charge {charge_id}")
    return _charge(_entry(connection, charge_id), row)


def _charge(entry: Entry, row: Row) -> Charge:
    told = ("budget_id", "seq", "hash", "amounts", "relation", "owner", "operation", "job_id", "at")
    later = {name: row[name] for name in ("state", "reason", "outcome")}
    return Charge(id=entry.charge_id, **{name: getattr(entry, name) for name in told}, **later)


def _now() -> int:
    return time.time_ns() // 1000
