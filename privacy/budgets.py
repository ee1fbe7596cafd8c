"""The ledger's privacy budgets of datasets: open, close, set rules, read. Charges to them are in `privacy.charging`."""

import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, func, insert, literal_column, select

from warpdesk.models import Accountant, Neighbouring
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.accountants import cost, total
from warpdesk_server.privacy.amounts import Amounts, Name, minus, read, shown, within
from warpdesk_server.privacy.chain import Entry, canonical, genesis
from warpdesk_server.privacy.database import one_at_a_time, reading, writing
from warpdesk_server.privacy.dataset import NotADataset, normal
from warpdesk_server.privacy.errors import Refused
from warpdesk_server.privacy.journal import Journal, budget_row, now
from warpdesk_server.privacy.rules import NO_RULES, Rules
from warpdesk_server.privacy.tables import BUDGETS, ENTRIES, Row
from warpdesk_server.privacy.verify import Verified, verify


class DatasetTaken(Refused):
    """Raised if a dataset already has an open privacy budget, `budget_id`.

    Names that differ only in case, blanks or encoding count as the same dataset.
    """

    code = "dataset-taken"
    pointer = "/dataset"

    def __init__(self, dataset: str, written: str, budget_id: str) -> None:
        alias = "" if written == dataset else f", as {written!r},"
        super().__init__(f"the dataset {dataset!r} has{alias} the open budget {budget_id}: close that one first")
        self.dataset = dataset
        self.budget_id = budget_id


class BudgetClosed(Refused):
    """Raised if a privacy budget is closed and takes no more charges."""

    code = "budget-closed"
    pointer = ""


@dataclass(frozen=True)
class NewBudget:
    """The request for a new privacy budget in the ledger. Amounts are decimal strings: epsilon (pure), epsilon and
    delta (approx), or rho (zcdp)."""

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
    """A dataset's privacy budget, as the ledger holds it. Amounts are exact decimal strings by name, times whole
    microseconds since 1970."""

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
    """The ledger's quote for a release: its cost, whether the privacy budget holds it now, and what would remain.

    If it does not fit, `remaining` is what remains now.
    """

    fits: bool
    cost: dict[Name, str]
    remaining: dict[Name, str]


@dataclass(frozen=True)
class Account:
    """The amounts of a privacy budget's row in the ledger, as numbers."""

    accountant: Accountant
    neighbouring: Neighbouring
    total: Amounts
    spent: Amounts

    @classmethod
    def of(cls, row: Row) -> "Account":
        """Parse the account of a budget's row in the ledger."""
        return cls(row["accountant"], row["neighbouring"], read(row["total"]), read(row["spent"]))

    @classmethod
    def of_open(cls, row: Row) -> "Account":
        """Parse the account of an open budget's row in the ledger. Raises BudgetClosed."""
        if row["state"] != "open":
            raise BudgetClosed(f"{row['id']} is closed")
        return cls.of(row)

    @property
    def remaining(self) -> Amounts:
        return minus(self.total, self.spent)

    def cost(self, spend: Spend) -> Amounts:
        """The cost of a release by the accountant of this privacy budget. Raises NotHeld."""
        return cost(self.accountant, self.neighbouring, spend)


class Budgets:
    """The privacy budgets of one ledger. Methods raise UnknownBudget for an id that no budget has."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def open(self, new: NewBudget) -> Budget:
        """Open a privacy budget in the ledger for a dataset that has no open one. Raises NotAnAmount, NotADataset,
        DatasetTaken."""
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
            "created_at": now(),
        }
        self._journal.compare()  # an older database may lack a budget of the dataset
        with writing(self._journal.engine) as connection:
            one_at_a_time(connection)
            for other in connection.execute(select(BUDGETS.c.id, BUDGETS.c.dataset).where(BUDGETS.c.state == "open")):
                if _alike(other.dataset, form):
                    raise DatasetTaken(new.dataset, other.dataset, other.id)
            row = self.insert(connection, budget, "open")
            if new.rules != NO_RULES:
                row = self._append_rules(connection, row, new.rules, new.created_by)
        self._journal.note(row)
        return _budget(row)

    def insert(self, connection: Connection, created: dict[str, Any], state: Literal["open", "closed"]) -> Row:
        """Write the ledger's row of a privacy budget whose chain has no entry yet."""
        none = canonical(shown(dict.fromkeys(read(created["total"]), 0)))
        budget = {**created, "state": state, "spent": none, "seq": 0, "head": genesis(created)}
        budget["seal"] = self._journal.secrets.seal("budget", budget)
        connection.execute(insert(BUDGETS).values(budget))
        return budget

    def get(self, budget_id: str) -> Budget:
        with reading(self._journal.engine) as connection:
            return _budget(budget_row(connection, budget_id))

    def page(self, limit: int, after: str | None = None) -> list[Budget]:
        """A page of the ledger's privacy budgets in the order of creation, starting after the budget `after`."""
        query = select(BUDGETS).order_by(BUDGETS.c.created_at, BUDGETS.c.id).limit(limit)
        with reading(self._journal.engine) as connection:
            if after is not None:
                last = budget_row(connection, after)
                at, key = BUDGETS.c.created_at, BUDGETS.c.id
                query = query.where((at > last["created_at"]) | ((at == last["created_at"]) & (key > last["id"])))
            return [_budget(row) for row in connection.execute(query).mappings()]

    def oldest_open(self, limit: int) -> tuple[list[Budget], int]:
        """The ledger's oldest open privacy budgets, and how many more are open."""
        is_open = BUDGETS.c.state == "open"
        query = select(BUDGETS).where(is_open).order_by(BUDGETS.c.created_at, BUDGETS.c.id).limit(limit)
        with reading(self._journal.engine) as connection:
            oldest = [_budget(row) for row in connection.execute(query).mappings()]
            count = connection.scalar(select(func.count()).select_from(BUDGETS).where(is_open)) or 0
        return oldest, count - len(oldest)

    def close(self, budget_id: str, by: str) -> Budget:
        """Close a privacy budget in the ledger to new charges; existing charges go on, and may be refunded. A second
        call does nothing."""
        with writing(self._journal.engine) as connection:
            row = self._journal.lock(connection, budget_id)
            if row["state"] == "open":
                row = self.append_close(connection, row, by, "")
        self._journal.note(row)
        return _budget(row)

    def rules(self, budget_id: str) -> Rules:
        with reading(self._journal.engine) as connection:
            budget_row(connection, budget_id)
            return rules_of(connection, budget_id)

    def change_rules(self, budget_id: str, rules: Rules, by: str) -> None:
        """Replace the rules of a privacy budget in its chain; existing charges stay. Raises BudgetClosed."""
        with writing(self._journal.engine) as connection:
            row = self._journal.lock(connection, budget_id)
            Account.of_open(row)
            if rules != rules_of(connection, budget_id):
                row = self._append_rules(connection, row, rules, by)
        self._journal.note(row)

    def quote(self, budget_id: str, spend: Spend, owner: str, inputs: Collection[str]) -> Quote:
        """Quote a charge to a privacy budget, without an entry in the ledger. Raises BudgetClosed, NotAllowed,
        NotHeld."""
        with reading(self._journal.engine) as connection:
            row = budget_row(connection, budget_id)
            rules_of(connection, budget_id).check(budget_id, owner, inputs)
        account = Account.of_open(row)
        costs = account.cost(spend)
        fits = within(costs, account.remaining)
        return Quote(fits, shown(costs), shown(minus(account.remaining, costs) if fits else account.remaining))

    def history(self, budget_id: str, after: int, limit: int) -> list[Entry]:
        """The entries of a privacy budget's chain that follow the one numbered `after`."""
        query = select(ENTRIES).where(ENTRIES.c.budget_id == budget_id, ENTRIES.c.seq > after)
        with reading(self._journal.engine) as connection:
            budget_row(connection, budget_id)
            rows = connection.execute(query.order_by(ENTRIES.c.seq).limit(limit)).mappings()
            return [Entry.of(row) for row in rows]

    def verify(self, budget_id: str) -> Verified:
        """Verify a privacy budget: its whole chain, its sums, and the rows of its charges."""
        with reading(self._journal.engine) as connection:
            return verify(connection, budget_row(connection, budget_id), self._journal.secrets)

    def append_close(self, connection: Connection, budget: Row, by: str, reason: str) -> Row:
        """Append the entry that closes a locked privacy budget."""
        return self._append_act(connection, budget, "close", budget["id"], by, reason, {"state": "closed"})

    def _append_rules(self, connection: Connection, budget: Row, rules: Rules, by: str) -> Row:
        return self._append_act(connection, budget, "rules", f"rules_{secrets.token_hex(16)}", by, rules.text, {})

    def _append_act(
        self, connection: Connection, budget: Row, kind: str, name: str, by: str, reason: str, changes: dict[str, Any]
    ) -> Row:
        """Append an administrator's act, a close or a change of rules, to the chain of a locked privacy budget."""
        no_request = dict.fromkeys(("operation", "params", "inputs", "version", "request", "job", "job_id"), "")
        _, row = self._journal.append(
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


def rules_of(connection: Connection, budget_id: str) -> Rules:
    """The current rules of an existing privacy budget."""
    at = (ENTRIES.c.budget_id == budget_id) & (ENTRIES.c.kind == literal_column("'rules'"))  # as the index has it
    text = connection.scalar(select(ENTRIES.c.reason).where(at).order_by(ENTRIES.c.seq.desc()).limit(1))
    return NO_RULES if text is None else Rules.of(text)


def _alike(dataset: str, form: str) -> bool:
    with suppress(NotADataset):  # an earlier release took such names
        return normal(dataset) == form
    return False


def _budget(row: Row) -> Budget:
    account = Account.of(row)
    same = {name: row[name] for name in ("id", "name", "dataset", "state", "seq", "head", "created_by", "created_at")}
    return Budget(
        accountant=account.accountant,
        neighbouring=account.neighbouring,
        total=shown(account.total),
        spent=shown(account.spent),
        remaining=shown(account.remaining),
        **same,
    )
