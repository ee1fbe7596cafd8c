"""The privacy ledger: the privacy budgets of datasets and the charges of their releases, in one database with its
anchor."""

import hmac
import json
from collections.abc import Callable, Mapping

from sqlalchemy import Connection, Engine, insert, select

from warpdesk_server.privacy.anchor import Anchor, Head
from warpdesk_server.privacy.budgets import Budgets
from warpdesk_server.privacy.charging import Charges
from warpdesk_server.privacy.database import FACTS, create_tables, writing
from warpdesk_server.privacy.journal import Journal, misfit_of
from warpdesk_server.privacy.seeds import Ring, WrongKey
from warpdesk_server.privacy.tables import BUDGETS


class Ledger:
    """The privacy ledger: budgets and charges in one database, which any number of processes may share.

    Its methods, and those of `budgets` and `charges`, raise DatabaseUnavailable if the database does not answer. Then
    the step is done whole or not at all, and the same call finishes it.
    """

    def __init__(self, engine: Engine, key: Ring | bytes, anchor: Anchor | None = None) -> None:
        """Build a ledger. A process that appends to chains needs an anchor, compared first and written last; workers
        need none."""
        self._journal = Journal(engine, key, anchor)
        self.budgets = Budgets(self._journal)
        self.charges = Charges(self._journal)

    @property
    def engine(self) -> Engine:
        return self._journal.engine

    def prepare(self) -> None:
        """Create the ledger's missing tables, and check that the database was made with this key.

        Raises WrongKey if it was not, and UnusableDatabase.
        """
        create_tables(self._journal.engine)
        with writing(self._journal.engine) as connection:
            query = select(FACTS.c.value).where(FACTS.c.name == "key")
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("LOCK TABLE facts IN EXCLUSIVE MODE")
            digest = connection.scalar(query)
            if digest is None:
                connection.execute(insert(FACTS).values(name="key", value=self._key_digest()))
            else:
                self.check_key(digest)

    def check_key(self, digest: str) -> None:
        """Raise WrongKey if the ledger's fact `key` is the digest of another key."""
        if not hmac.compare_digest(digest, self._key_digest()):
            raise WrongKey(
                "the ledger's database was made with another key: put that key file back, "
                "without it the open charges cannot be released"
            )

    def dispose(self) -> None:
        """Close all connections to the ledger's database and to its anchor."""
        self._journal.engine.dispose()
        if self._journal.anchor is not None:
            self._journal.anchor.dispose()

    def compare(self, *, note: bool = True) -> None:
        """Compare every budget with the anchor, and note there what a crash left out. Raises LedgerBehind."""
        self._journal.compare(note=note)

    def accept(
        self, heads: Mapping[str, Head], name: str, by: str, announce: Callable[[list[str]], None], *, others: bool
    ) -> list[str]:
        """Accept a restored database as that of the ledger `name`, and close every budget that does not continue its
        anchored head.

        Budgets that the database lacks are inserted as closed. With `others`, budgets without an anchored head are
        closed too. Returns the ids of the closed budgets, which are given to `announce` first.
        """
        anchor = self._journal.anchor
        assert anchor is not None  # noqa: S101
        closed = []
        with writing(self._journal.engine) as connection:
            lock = select(BUDGETS).with_for_update()
            there = {row["id"] for row in connection.execute(lock).mappings()}
            for budget_id in heads.keys() - there:
                self.budgets.insert(connection, json.loads(heads[budget_id].created), "closed")
            for row in connection.execute(lock).mappings().all():
                head = heads.get(row["id"])
                original = row if row["id"] in there else None
                misfit = misfit_of(connection, head, original) if head else others and f"{row['id']} is in no anchor"
                if misfit and (row["state"] == "open" or original is None):
                    reason = f"{misfit}; an administrator accepted the database"
                    self.budgets.append_close(connection, row, by, reason)
                    closed.append(row["id"])
            announce(closed)
            _name(connection, name)
            # Before the commit: after a crash in between the database is behind again, and announces the same ids.
            anchor.replace(list(connection.execute(select(BUDGETS)).mappings()))
        return closed

    def name(self, ledger: str) -> None:
        """Write the ledger's id to its database, unless one is there."""
        with writing(self._journal.engine) as connection:
            _name(connection, ledger)

    def _key_digest(self) -> str:
        return self._journal.secrets.digest("check")


def _name(connection: Connection, ledger: str) -> None:
    if connection.scalar(select(FACTS.c.value).where(FACTS.c.name == "ledger")) is None:
        connection.execute(insert(FACTS).values(name="ledger", value=ledger))
