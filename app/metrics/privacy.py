"""Metrics of budgets and rounds, from the ledger.

No metric depends on private data: what a budget has spent depends only on the charges that were requested.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric

from warpdesk_server.app.metrics.families import families
from warpdesk_server.privacy.budgets import Budget
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.rounds.records import PHASES, Phase
from warpdesk_server.privacy.rounds.state import Rounds

SECONDS = 15.0
OLD_SECONDS = 3 * SECONDS  # values that are older count as stale: the ledger does not answer
MOST = 100  # datasets: each adds several series


@dataclass(frozen=True)
class Snapshot:
    budgets: Sequence[Budget]  # open ones; a dataset has at most one
    left_out: int
    rounds: Mapping[Phase, int]
    round_bytes: int


def look(ledger: Ledger, rounds: Rounds) -> Snapshot:
    """Read the budgets and rounds that the metrics page shows from the ledger's database."""
    budgets, left_out = ledger.budgets.oldest_open(MOST)
    return Snapshot(budgets, left_out, rounds.phases(), rounds.live_bytes())


def collect(snapshot: Snapshot) -> Iterator[Metric]:
    """All metrics of budgets and rounds on the API's metrics page, except the counted charges."""
    for name in ("epsilon", "delta", "rho"):
        budgets = [budget for budget in snapshot.budgets if name in budget.total]
        yield from families(
            {
                f"privacy_{name}_budget": {(budget.dataset,): float(budget.total[name]) for budget in budgets},
                f"privacy_{name}_spent": {(budget.dataset,): float(budget.spent[name]) for budget in budgets},
            }
        )
    yield from families(
        {
            "privacy_datasets_left_out": {(): snapshot.left_out},
            "rounds": {(phase,): snapshot.rounds.get(phase, 0) for phase in PHASES},
            "round_bytes": {(): snapshot.round_bytes},
        }
    )
