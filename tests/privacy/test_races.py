"""Processes that charge at once, and processes that are killed at any step: nothing is lost, nothing is paid twice."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from tests.privacy.ledgers import charge_request, charged, claimed, open_budget, spend
from tests.privacy.processes import Call, Processes
from warpdesk_server.privacy.budgets import Budget
from warpdesk_server.privacy.charges import Charge
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.tables import CHARGES, OUTBOX, REQUESTS, SEEDS

OUTCOME, ANSWER = '{"result":"here"}', b"answer".hex()

RACERS = 64
MOST_STEPS = 40  # more than any call has


def test_64_processes_race_for_the_last_hundredth_of_a_budget(
    ledger: Ledger, database: str, key: bytes, processes: Processes
) -> None:
    """Each asks for two thousandths, and each request is sent by two of them."""
    budget = open_budget(ledger, epsilon="1")
    charged(ledger, budget, 0, "0.99")
    tasks: list[list[Call]] = [
        [["charge", budget.id, 1 + racer // 2 * 2 + turn, "0.001"] for turn in range(2)] for racer in range(RACERS)
    ]
    ended = processes.run(database, key, tasks)
    assert not any(one.killed for one in ended)
    answers = [answer for one in ended for answer in one.answers]
    assert len(answers) == 2 * RACERS
    acknowledged = [tuple(answer) for answer in answers if isinstance(answer, list)]
    assert {answer["refused"] for answer in answers if isinstance(answer, dict)} == {"OverBudget"}
    made = [charge_id for charge_id, replayed in acknowledged if not replayed]
    entries = ledger.budgets.history(budget.id, 1, 1000)
    assert sorted(made) == sorted(entry.charge_id for entry in entries)
    assert {charge_id for charge_id, _ in acknowledged} == set(made)
    assert len(made) == 10
    assert ledger.budgets.get(budget.id).remaining == {"epsilon": "0"}
    assert ledger.budgets.verify(budget.id).ok


def test_one_request_sent_by_16_processes_to_two_budgets_is_one_charge(
    ledger: Ledger, database: str, key: bytes, processes: Processes
) -> None:
    budgets = [open_budget(ledger, dataset) for dataset in ("one", "other")]
    tasks: list[list[Call]] = [[["charge", budgets[racer % 2].id, 1, "0.1"]] for racer in range(16)]
    answers = [one.answers[0] for one in processes.run(database, key, tasks)]
    assert len({charge_id for charge_id, _ in answers}) == 1
    assert Counter(replayed for _, replayed in answers) == {True: 15, False: 1}
    assert sorted(ledger.budgets.get(budget.id).seq for budget in budgets) == [0, 1]


def test_16_processes_claim_one_charge_and_release_one_answer(
    ledger: Ledger, database: str, key: bytes, processes: Processes
) -> None:
    charge = charged(ledger, open_budget(ledger))
    tasks: list[list[Call]] = [
        [["claim", charge.id], ["release", charge.id, f'{{"result":"{racer}"}}', ANSWER]] for racer in range(16)
    ]
    answers = [one.answers for one in processes.run(database, key, tasks)]
    outcomes = {outcome for _, outcome in answers}
    assert outcomes == {ledger.charges.get(charge.id).outcome}
    keys = {claim for claim, _ in answers} - outcomes  # who came late was told the outcome
    assert len(keys) == 1


def test_of_a_claim_and_a_refund_at_once_one_succeeds(
    ledger: Ledger, database: str, key: bytes, processes: Processes
) -> None:
    budget = open_budget(ledger)
    for number in range(5):
        charge = charged(ledger, budget, number)
        claim, refund = processes.run(database, key, [[["claim", charge.id]], [["void", charge.id, False]]])
        if refund.answers == [True]:
            assert claim.answers == [{"refused": "ChargeEnded"}]
            assert ledger.charges.get(charge.id).state == "void"
        else:
            assert refund.answers == [False]
            assert claim.answers == [claimed(ledger, charge).hex()]
    assert ledger.budgets.verify(budget.id).ok


def test_16_processes_that_start_at_once_agree(empty_database: str, key: bytes, processes: Processes) -> None:
    ended = processes.run(empty_database, key, [[["prepare"]]] * 16)
    assert [one.answers for one in ended] == [[None]] * 16
    ended = processes.run(empty_database, bytes(32), [[["prepare"]]])
    assert ended[0].answers == [{"refused": "WrongKey"}]


@dataclass(frozen=True)
class Killing:
    """A call that is killed, and what has to be true once it has been made again."""

    call: Callable[[Budget, Charge], Call]
    ready: Callable[[Ledger, Charge], object]
    holds: Callable[[Ledger, Charge, Any], bool]


KILLINGS = {
    "charge": Killing(
        lambda budget, _: ["charge", budget.id, 2, "0.1"],
        lambda _, __: None,
        lambda ledger, charge, answer: ledger.charges.get(answer[0]).state == "charged" and answer[0] != charge.id,
    ),
    "claim": Killing(
        lambda _, charge: ["claim", charge.id],
        lambda _, __: None,
        lambda ledger, charge, answer: claimed(ledger, charge).hex() == answer,
    ),
    "release": Killing(
        lambda _, charge: ["release", charge.id, OUTCOME, ANSWER],
        claimed,
        lambda ledger, charge, answer: ledger.charges.get(charge.id).outcome == answer == OUTCOME,
    ),
    "void": Killing(
        lambda _, charge: ["void", charge.id, True],
        lambda _, __: None,
        lambda ledger, charge, answer: answer is True and ledger.charges.get(charge.id).state == "void",
    ),
}


@pytest.mark.parametrize("name", KILLINGS)
def test_a_process_killed_at_any_step_leaves_one_charge_one_key_and_one_outcome(
    ledger: Ledger, engine: Engine, database: str, key: bytes, processes: Processes, name: str
) -> None:
    for step in range(1, MOST_STEPS):
        if not _killed(ledger, engine, processes, (database, key), name, step):
            break
    assert 5 < step < MOST_STEPS - 1


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KILLINGS)
def test_200_processes_killed_at_any_step_leave_one_charge_each(
    ledger: Ledger, engine: Engine, database: str, key: bytes, processes: Processes, name: str
) -> None:
    killed = 0
    while killed < 200:
        killed += _killed(ledger, engine, processes, (database, key), name, random.randint(1, 14))


def _killed(
    ledger: Ledger, engine: Engine, processes: Processes, place: tuple[str, bytes], name: str, step: int
) -> bool:
    """Kill the call at that step, if it has so many, and make it again."""
    killing = KILLINGS[name]
    budget = open_budget(ledger, f"killed at {step} {random.random()}", epsilon="0.2")
    number = random.randrange(10**9)
    charge = ledger.charges.reserve(budget.id, spend(), charge_request(1, idempotency_key=f"first {number}")).charge
    killing.ready(ledger, charge)
    call = killing.call(budget, charge)
    if name == "charge":
        call[2] = number
    first = processes.one(*place, call, die_at=step)
    assert ledger.budgets.verify(budget.id).ok  # whatever was done is whole
    again = processes.one(*place, call)
    assert not again.killed
    [answer] = again.answers
    assert killing.holds(ledger, charge, answer)
    if first.answers and name != "charge":
        assert first.answers == again.answers
    assert ledger.budgets.verify(budget.id).ok
    expected = {"charge": ["charge"] * 2, "void": ["charge", "refund"]}.get(name, ["charge"])
    assert [entry.kind for entry in ledger.budgets.history(budget.id, 0, 9)] == expected
    with engine.connect() as connection:
        of_it = select(CHARGES.c.id).where(CHARGES.c.budget_id == budget.id)
        counts = {
            table.name: connection.scalar(select(func.count()).where(table.c.charge_id.in_(of_it)))
            for table in (SEEDS, OUTBOX, REQUESTS)
        }
    live = {"charge": 2, "claim": 1}.get(name, 0)
    assert counts == {SEEDS.name: live, OUTBOX.name: live, REQUESTS.name: {"charge": 2, "void": 0}.get(name, 1)}
    return first.killed
