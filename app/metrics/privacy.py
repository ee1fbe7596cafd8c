"""Metrics of budgets and rounds, from the ledger. Nothing in them depends on data: a budget's state is what was asked
of it, and its charges are counted whether they were granted or refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from warpdesk_server.privacy.ledger import Budget, Ledger
from warpdesk_server.privacy.rounds.state import PHASES, Phase, Rounds

SECONDS = 15.0
OLD_SECONDS = 3 * SECONDS  # what is older is of a ledger that does not answer
MOST = 100  # datasets: each is some series


@dataclass(frozen=True)
class Seen:
    budgets: Sequence[Budget]  # open ones, of which a dataset has one
    left_out: int
    rounds: Mapping[Phase, int]
    round_bytes: int


def look(ledger: Ledger, rounds: Rounds) -> Seen:
    """Asks the database."""
    budgets, left_out = ledger.open_budgets(MOST)
    return Seen(budgets, left_out, rounds.phases(), rounds.live_bytes())


def families(seen: Seen) -> Iterator[Metric]:
    """All metrics of budgets and rounds, but the counted charges."""
    names = (("epsilon", "Privacy loss"), ("delta", "Probability of more loss"), ("rho", "Zero-concentrated loss"))
    for name, words in names:
        total = GaugeMetricFamily(
            f"warpdesk_privacy_{name}_budget",
            f"{words} that the open budget of a dataset holds in all, of budgets that are kept in {name}",
            labels=["dataset"],
        )
        spent = GaugeMetricFamily(
            f"warpdesk_privacy_{name}_spent",
            f"{words} that was charged to it. Charged is not released: a charge that is refunded goes down again",
            labels=["dataset"],
        )
        for budget in seen.budgets:
            if name in budget.total:
                total.add_metric([budget.dataset], float(budget.total[name]))
                spent.add_metric([budget.dataset], float(budget.spent[name]))
        yield from (total, spent)
    yield GaugeMetricFamily(
        "warpdesk_privacy_datasets_left_out",
        f"Datasets with an open budget that are in no metric, because there are more than {MOST}",
        value=seen.left_out,
    )
    live = GaugeMetricFamily(
        "warpdesk_rounds", "Rounds of secure aggregation whose data is kept, by phase", labels=["phase"]
    )
    for phase in PHASES:
        live.add_metric([phase], seen.rounds.get(phase, 0))
    yield live
    yield GaugeMetricFamily(
        "warpdesk_round_bytes",
        "Bytes of the masked vectors of live rounds, those to come among them",
        value=seen.round_bytes,
    )
