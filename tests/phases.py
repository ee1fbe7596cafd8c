"""Phases of a round that end when a test says so. A busy machine does not send within a short deadline, and a long one
is waited for."""

import time

from sqlalchemy import Engine, update

from warpdesk_server.privacy.database import writing
from warpdesk_server.privacy.rounds.records import Phase
from warpdesk_server.privacy.rounds.tables import rounds


def end_phase(ledger: Engine, round_id: str, phase: Phase, left: float = 0.0) -> None:
    """The time of the phase that the round is in is over, or has so many seconds left."""
    this = update(rounds).where(rounds.c.id == round_id, rounds.c.phase == phase)
    with writing(ledger) as connection:
        assert connection.execute(this.values(phase_ends=time.time() + left)).rowcount == 1
