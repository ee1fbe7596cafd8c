"""The ledger's charges: the cost of a release, taken from a privacy budget before any noise is drawn.

The state machine of one charge:

    reserve              claim                release
    ───────▶  charged  ────────▶  claimed  ───────────▶  released
                 │                   │
                 │ refund            │ fail
                 ▼                   ▼
                void               failed

The API reserves: it writes the wrapped seed, the job and the caller's idempotency key in one transaction. A worker
claims and receives the noise key. It is the same at every claim, so a job that runs again gives the same answer. The
worker releases once the answer is on the disk, and the seed is deleted in that transaction. A charge that was never
claimed is refunded. A claimed one stays spent, since its noise may have been shown.
"""

import hmac
import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.amounts import minus, plus, read, shown, within
from warpdesk_server.privacy.budgets import Account, rules_of
from warpdesk_server.privacy.chain import Entry, canonical
from warpdesk_server.privacy.charges import (
    Charge,
    ChargeChanged,
    ChargeEnded,
    ChargeRequest,
    KeyReused,
    NotClaimed,
    OpenCharge,
    OverBudget,
    UnknownCharge,
)
from warpdesk_server.privacy.database import DatabaseUnavailable, reading, truncate_log, writing
from warpdesk_server.privacy.journal import Journal, budget_row, now
from warpdesk_server.privacy.seeds import SIZE, noise_key
from warpdesk_server.privacy.tables import CHARGES, ENTRIES, OUTBOX, REQUESTS, SEEDS, Row

_OF_ITS_PLACE = ("budget_id", "seq", "at", "prev", "hash")  # in the chain, where the rest is of the charge
_LATER = ("reason", "outcome", "answer")


@dataclass(frozen=True)
class Reservation:
    """The result of a reservation in the ledger: the charge, and whether the same request had made it before."""

    charge: Charge
    replayed: bool  # it was charged before, for the same request


@dataclass(frozen=True)
class NoiseKey:
    """The noise key of a claimed charge: the secret that all noise of its release is drawn from."""

    charge_id: str
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Released:
    """The answer of a charge released in the ledger: where it is stored (`outcome`, JSON), and its keyed digest."""

    outcome: str
    digest: str  # keyed, of the answer


class Charges:
    """The charges of one privacy ledger. Each method is one state transition, in one transaction."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._secrets = journal.secrets

    def reserve(self, budget_id: str, spend: Spend, request: ChargeRequest) -> Reservation:
        """Charge a release to a privacy budget, once for each idempotency key of an owner.

        Repeating the request returns its charge, in whatever state. Raises KeyReused for another request,
        UnknownBudget, BudgetClosed, NotAllowed, NotHeld and OverBudget; nothing is written then.
        """
        try:
            return self._reserve(budget_id, spend, request)
        except IntegrityError:
            # The same key came to two budgets at once: it is there now.
            return self._reserve(budget_id, spend, request)

    def _reserve(self, budget_id: str, spend: Spend, request: ChargeRequest) -> Reservation:
        # All that can be is made ready before the budget is locked: others wait for it.
        key_digest, fingerprint = self._request_digests(request.owner, request.idempotency_key, request.fingerprint)
        digests = {
            **self._release_digests(request.params, request.inputs, request.version),
            "request": self._secrets.digest("request", request.owner, key_digest, fingerprint),
            "job": self._secrets.digest("job", request.job),
        }
        charge_id = f"charge_{secrets.token_hex(16)}"
        wrapped = self._secrets.wrap(secrets.token_bytes(SIZE), charge_id)
        charge = {"id": charge_id, "budget_id": budget_id, "state": "charged", "forgotten": False}
        charge |= dict.fromkeys(_LATER)
        charge["seal"] = self._secrets.seal("charge", charge)
        owned_key = {"owner": request.owner, "idempotency_key": key_digest}
        with writing(self._journal.engine) as connection:
            budget = self._journal.lock(connection, budget_id)
            if (earlier := self._earlier(connection, request.owner, key_digest, fingerprint)) is not None:
                return Reservation(earlier, replayed=True)
            account = Account.of_open(budget)
            rules_of(connection, budget_id).check(budget_id, request.owner, json.loads(request.inputs).values())
            cost = account.cost(spend)
            if not within(cost, account.remaining):
                raise OverBudget(budget_id, shown(cost), shown(account.remaining))
            entry, budget = self._journal.append(
                connection,
                budget,
                {"spent": canonical(shown(plus(account.spent, cost)))},
                kind="charge",
                charge_id=charge_id,
                owner=request.owner,
                operation=request.operation,
                amounts=shown(cost),
                relation=spend.neighbouring or "declared",
                **digests,
                job_id=request.job_id,
                reason="",
            )
            outbox = {"charge_id": charge_id, "job_id": request.job_id, "job": request.job, "at": entry.at}
            connection.execute(insert(CHARGES).values(charge))
            connection.execute(insert(SEEDS).values(charge_id=charge_id, wrapped=wrapped))
            connection.execute(insert(OUTBOX).values(outbox))
            connection.execute(insert(REQUESTS).values(**owned_key, fingerprint=fingerprint, charge_id=charge_id))
        self._journal.note(budget)
        return Reservation(_charge(entry, charge), replayed=False)

    def of_request(self, owner: str, idempotency_key: str, fingerprint: str) -> Charge | None:
        """Look up a request's charge in the ledger by its idempotency key. Raises KeyReused if another request used the
        key."""
        digests = self._request_digests(owner, idempotency_key, fingerprint)
        with reading(self._journal.engine) as connection:
            return self._earlier(connection, owner, *digests)

    def get(self, charge_id: str) -> Charge:
        """Look up a charge in the ledger by id. Raises UnknownCharge."""
        with reading(self._journal.engine) as connection:
            return _get(connection, charge_id)

    def claim(self, charge_id: str, *, operation: str, params: str, inputs: str, version: str) -> NoiseKey | Released:
        """Claim a charge in the ledger: return its noise key, the same each time, or its stored answer if it has one.

        After the first claim the charge cannot be refunded. Raises UnknownCharge, ChargeChanged if the job differs from
        what was charged, and ChargeEnded if the charge failed or is void.
        """
        digests = self._release_digests(params, inputs, version)
        with writing(self._journal.engine) as connection:
            charge = self._lock(connection, charge_id)
            entry = vars(_entry(connection, charge_id))
            parts = {"operation": operation, **digests}
            changed = tuple(name for name in parts if entry[name] != parts[name])
            if changed:
                raise ChargeChanged(charge_id, changed)
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
        """Release a charge: record in the ledger the digest of its answer, and where that is stored (`outcome`, JSON).

        The same transaction deletes the seed and the outbox row. Repeating the call with the same digest returns the
        first outcome. Raises ChargeChanged for another answer, NotClaimed, ChargeEnded, UnknownCharge.
        """
        answer = self._secrets.digest("answer", digest.hex())
        with writing(self._journal.engine) as connection:
            charge = self._lock(connection, charge_id)
            if charge["state"] == "released":
                if not hmac.compare_digest(charge["answer"], answer):
                    raise ChargeChanged(charge_id, ("answer",))
                return Released(charge["outcome"], charge["answer"])
            _require_claimed(charge)
            self._turn(connection, charge, state="released", outcome=outcome, answer=answer)
        self.erase()
        return Released(outcome, answer)

    def fail(self, charge_id: str, reason: str) -> None:
        """Fail a claimed charge: it stays spent in the ledger, as its noise may have been shown.

        A second call does nothing. Raises NotClaimed, ChargeEnded, UnknownCharge.
        """
        with writing(self._journal.engine) as connection:
            charge = self._lock(connection, charge_id)
            if charge["state"] == "failed":
                return
            _require_claimed(charge)
            self._turn(connection, charge, state="failed", reason=reason)
        self.erase()

    def refund(self, charge_id: str, reason: str, *, forget_key: bool) -> bool:
        """Refund a charge to its privacy budget if it was never claimed. Returns False if it was, or may have been.

        Chains do not record claims. An older database may have lost the claims of charges made before it was opened, so
        those count as claimed.

        With `forget_key` the idempotency key may be used for another request. Raises UnknownCharge.
        """
        with writing(self._journal.engine) as connection:
            charge = self._lock(connection, charge_id)
            if charge["state"] not in ("charged", "void"):
                return False
            budget = None
            if charge["state"] == "charged":
                entry = _entry(connection, charge_id)
                if self._journal.precedes_start(entry):
                    self._turn(connection, charge, state="claimed")
                    return False
                budget = self._append_refund(connection, entry, reason)
            else:
                reason = charge["reason"]
            forgotten = forget_key or charge["forgotten"]
            self._turn(connection, charge, state="void", reason=reason, forgotten=forgotten)
            if forgotten:
                connection.execute(delete(REQUESTS).where(REQUESTS.c.charge_id == charge_id))
        if budget is not None:
            # A database without the refund has more spent: it may be noted later, when ledger and anchor are compared.
            with suppress(DatabaseUnavailable):
                self._journal.note(budget)
        self.erase()
        return True

    def settle(self, charge_id: str, reason: str, *, forget_key: bool = False) -> None:
        """End a ledger's charge whose job will give no answer: refund it if it was never claimed, else it stays spent.

        A charge that was released just before stays as it is. Raises UnknownCharge.
        """
        if not self.refund(charge_id, reason, forget_key=forget_key):
            with suppress(ChargeEnded):
                self.fail(charge_id, reason)

    def open(self, older_than: float, limit: int) -> list[OpenCharge]:
        """The ledger's oldest open charges that are at least `older_than` seconds old.

        Charges dated in the future, made before the clock was set back, are included.
        """
        time = now()
        query = (
            select(OUTBOX, CHARGES.c.budget_id, CHARGES.c.state)
            .join(CHARGES, CHARGES.c.id == OUTBOX.c.charge_id)
            .where(or_(OUTBOX.c.at <= time - int(older_than * 1e6), OUTBOX.c.at > time))
            .order_by(OUTBOX.c.at, OUTBOX.c.charge_id)
            .limit(limit)
        )
        with reading(self._journal.engine) as connection:
            return [OpenCharge(**row) for row in connection.execute(query).mappings()]

    def erase(self) -> bool:
        """Truncate the ledger's SQLite log, which still holds the seeds of ended charges. Returns whether it is empty.

        Every transition that ends a charge calls it too, but a concurrent reader prevents it: call it periodically.
        """
        return truncate_log(self._journal.engine)

    def rewrap(self) -> int:
        """Rewrap the seeds of all open charges with the newest key; returns how many there are. Raises WrongKey.

        Safe beside a running service: each seed is a transaction of its own, and a charge that ends meanwhile deletes
        its seed.
        """
        with reading(self._journal.engine) as connection:
            seeds = connection.execute(select(SEEDS.c.charge_id, SEEDS.c.wrapped)).all()
        for charge_id, wrapped in seeds:
            again = self._secrets.rewrapped(wrapped, charge_id)
            if again is not None:
                with writing(self._journal.engine) as connection:
                    same = (SEEDS.c.charge_id == charge_id) & (SEEDS.c.wrapped == wrapped)
                    connection.execute(update(SEEDS).where(same).values(wrapped=again))
        self.erase()  # SQLite's log has them as they were
        return len(seeds)

    def _append_refund(self, connection: Connection, entry: Entry, reason: str) -> Row:
        budget = self._journal.lock(connection, entry.budget_id)
        same = {name: value for name, value in vars(entry).items() if name not in _OF_ITS_PLACE}
        spent = minus(read(budget["spent"]), read(canonical(entry.amounts)))
        changes = {"spent": canonical(shown(spent))}
        return self._journal.append(connection, budget, changes, **{**same, "kind": "refund", "reason": reason})[1]

    def _earlier(self, connection: Connection, owner: str, key_digest: str, fingerprint: str) -> Charge | None:
        """The charge in the ledger that a request made before, if any.

        It is written to the anchor first, since the process that charged it may have crashed before it did so.
        """
        query = select(REQUESTS).where(REQUESTS.c.owner == owner, REQUESTS.c.idempotency_key == key_digest)
        request = connection.execute(query).mappings().one_or_none()
        if request is None:
            return None
        if not hmac.compare_digest(request["fingerprint"], fingerprint):
            raise KeyReused("the Idempotency-Key was sent before with another body, for which a budget was charged")
        charge = _get(connection, request["charge_id"])
        self._journal.note(budget_row(connection, charge.budget_id))
        return charge

    def _lock(self, connection: Connection, charge_id: str) -> Row:
        query = select(CHARGES).where(CHARGES.c.id == charge_id).with_for_update()
        row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise UnknownCharge(f"there is no charge {charge_id}")
        self._journal.require_seal("charge", row)
        return row

    def _turn(self, connection: Connection, charge: Row, **changes: Any) -> None:
        """Change the state of a locked charge in the ledger. A charge that has ended loses its seed and its outbox
        row."""
        seal = self._secrets.seal("charge", {**charge, **changes})
        connection.execute(update(CHARGES).where(CHARGES.c.id == charge["id"]).values(**changes, seal=seal))
        if changes["state"] != "claimed":
            for table in (SEEDS, OUTBOX):
                connection.execute(delete(table).where(table.c.charge_id == charge["id"]))

    def _request_digests(self, owner: str, idempotency_key: str, fingerprint: str) -> tuple[str, str]:
        """Keyed digests of a charge request's idempotency key and fingerprint. They can be compared, not read or
        guessed."""
        key_digest = self._secrets.digest("idempotency key", owner, idempotency_key)
        return key_digest, self._secrets.digest("fingerprint", fingerprint)

    def _release_digests(self, params: str, inputs: str, version: str) -> dict[str, str]:
        """Keyed digests of the parts of a job that a charge covers."""
        texts = {"params": params, "inputs": inputs, "version": version}
        return {name: self._secrets.digest(name, text) for name, text in texts.items()}


def _require_claimed(charge: Row) -> None:
    if charge["state"] == "charged":
        raise NotClaimed(f"nobody claimed {charge['id']}")
    if charge["state"] != "claimed":
        raise ChargeEnded(charge["id"], charge["state"], charge["reason"])


def _entry(connection: Connection, charge_id: str) -> Entry:
    query = select(ENTRIES).where(ENTRIES.c.charge_id == charge_id, ENTRIES.c.kind == "charge")
    return Entry.of(connection.execute(query).mappings().one())


def _get(connection: Connection, charge_id: str) -> Charge:
    row = connection.execute(select(CHARGES).where(CHARGES.c.id == charge_id)).mappings().one_or_none()
    if row is None:
        raise UnknownCharge(f"there is no charge {charge_id}")
    return _charge(_entry(connection, charge_id), row)


def _charge(entry: Entry, row: Row) -> Charge:
    same = ("budget_id", "seq", "hash", "amounts", "relation", "owner", "operation", "job_id", "at")
    later = {name: row[name] for name in ("state", "reason", "outcome")}
    return Charge(id=entry.charge_id, **{name: getattr(entry, name) for name in same}, **later)
