"""What a ledger promises, on SQLite and on PostgreSQL."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, insert, inspect, select, text, update
from sqlalchemy.exc import IntegrityError

from tests.privacy.ledgers import RELEASE, charge_request, charged, claimed, open_budget, spend
from warpdesk_server.privacy.accountants import AMOUNTS, NotHeld
from warpdesk_server.privacy.amounts import NotAnAmount
from warpdesk_server.privacy.budgets import BudgetClosed, DatasetTaken, rules_of
from warpdesk_server.privacy.charges import ChargeChanged, ChargeEnded, KeyReused, NotClaimed, OverBudget, UnknownCharge
from warpdesk_server.privacy.charging import Released
from warpdesk_server.privacy.database import FACTS, SCHEMA, UnusableDatabase, create_tables, writing
from warpdesk_server.privacy.dataset import NotADataset
from warpdesk_server.privacy.journal import UnknownBudget
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.rules import NotAllowed, Rules
from warpdesk_server.privacy.seeds import WrongKey
from warpdesk_server.privacy.tables import BUDGETS, ENTRIES, OUTBOX, SEEDS

OUTCOME = '{"result":"job_0001.1"}'
ANSWER = b"the digest of an answer"


def test_ten_charges_of_a_tenth_fit_and_an_eleventh_does_not(ledger: Ledger) -> None:
    budget = open_budget(ledger, epsilon="1.0")
    for number in range(10):
        charged(ledger, budget, number, "0.1")
    with pytest.raises(OverBudget, match=r"costs epsilon 0\.1; of budget_\w+ there remains epsilon 0$") as refused:
        charged(ledger, budget, 10, "0.1")
    assert (refused.value.cost, refused.value.remaining) == ({"epsilon": "0.1"}, {"epsilon": "0"})
    after = ledger.budgets.get(budget.id)
    assert (after.spent, after.remaining, after.seq) == ({"epsilon": "1"}, {"epsilon": "0"}, 10)


def test_a_tenth_and_two_tenths_fit_three_tenths(ledger: Ledger) -> None:
    budget = open_budget(ledger, epsilon="0.3")
    charged(ledger, budget, 1, "0.1")
    charged(ledger, budget, 2, "0.2")
    assert ledger.budgets.get(budget.id).remaining == {"epsilon": "0"}


def test_a_budget_that_was_asked_too_much_goes_on(ledger: Ledger) -> None:
    budget = open_budget(ledger, epsilon="1")
    charged(ledger, budget, 1, "0.7")
    with pytest.raises(OverBudget):
        charged(ledger, budget, 2, "0.300000000001")
    assert charged(ledger, budget, 2, "0.3").seq == 2
    assert ledger.budgets.verify(budget.id).ok


@pytest.mark.parametrize(
    ("given", "cost", "remaining"),
    [
        ({"accountant": "pure", "epsilon": "1"}, {"epsilon": "0.333333333334"}, {"epsilon": "0.666666666666"}),
        (
            {"accountant": "approx", "epsilon": "1", "delta": "1e-6"},
            {"epsilon": "0.333333333334", "delta": "0.000000142857142857142858"},
            {"epsilon": "0.666666666666", "delta": "0.000000857142857142857142"},
        ),
        ({"accountant": "zcdp", "rho": "0.5"}, {"rho": "0.055555555555556"}, {"rho": "0.444444444444444"}),
    ],
)
def test_what_is_spent_is_rounded_up_and_what_remains_is_exact(
    ledger: Ledger, given: dict[str, Any], cost: dict[str, str], remaining: dict[str, str]
) -> None:
    budget = open_budget(ledger, **given)
    third = Fraction(1, 3)
    release = spend(third, approx=(third, Fraction(1, 7) / 10**6))
    assert ledger.charges.reserve(budget.id, release, charge_request()).charge.amounts == cost
    after = ledger.budgets.get(budget.id)
    assert (after.spent, after.remaining) == (cost, remaining)


def test_both_amounts_of_an_approx_budget_have_to_fit(ledger: Ledger) -> None:
    budget = open_budget(ledger, accountant="approx", epsilon="10", delta="2e-6")
    for number in range(2):
        ledger.charges.reserve(budget.id, spend(approx=(Fraction(1), Fraction("1e-6"))), charge_request(number))
    with pytest.raises(OverBudget, match=r"epsilon 8 and delta 0$"):
        ledger.charges.reserve(budget.id, spend(approx=(Fraction(1), Fraction("1e-24"))), charge_request(2))
    ledger.charges.reserve(budget.id, spend(approx=(Fraction(1), Fraction(0))), charge_request(2))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"epsilon": "0.0000000000001"}, "epsilon"),  # a tenth of the least amount
        ({"epsilon": "0"}, "epsilon"),
        ({"epsilon": "-1"}, "epsilon"),
        ({"epsilon": "1_0"}, "epsilon"),
        ({"epsilon": "nan"}, "epsilon"),
        ({"epsilon": None}, "epsilon"),
        ({"rho": "1"}, "rho"),
        ({"accountant": "approx"}, "delta"),
        ({"accountant": "approx", "delta": "1"}, "delta"),
        ({"accountant": "zcdp"}, "rho"),
    ],
)
def test_a_total_that_cannot_be_kept_exactly_is_refused(ledger: Ledger, given: dict[str, Any], name: str) -> None:
    with pytest.raises(NotAnAmount) as refused:
        open_budget(ledger, **given)
    assert refused.value.name == name
    assert ledger.budgets.page(10) == []


def test_a_budget_is_for_one_relation_of_neighbours(ledger: Ledger) -> None:
    budget = open_budget(ledger, neighbouring="add_remove")
    with pytest.raises(NotHeld, match="neighbours by replace_one, the budget counts those by add_remove"):
        ledger.charges.reserve(budget.id, spend(neighbouring="replace_one"), charge_request())
    enforced = ledger.charges.reserve(budget.id, spend(neighbouring="add_remove"), charge_request(1)).charge
    declared = ledger.charges.reserve(budget.id, spend(neighbouring=None), charge_request(2)).charge
    assert [enforced.relation, declared.relation] == ["add_remove", "declared"]
    assert [entry.relation for entry in ledger.budgets.history(budget.id, 0, 9)] == ["add_remove", "declared"]


def test_an_accountant_refuses_what_it_cannot_hold(ledger: Ledger) -> None:
    gaussian = spend(pure=None, approx=None, zcdp=Fraction(1, 10))
    budget = open_budget(ledger)
    with pytest.raises(NotHeld, match="the accountant pure cannot hold this release; zcdp can"):
        ledger.charges.reserve(budget.id, gaussian, charge_request())
    with pytest.raises(NotHeld):
        ledger.budgets.quote(budget.id, gaussian, "key_a", ())
    assert ledger.budgets.history(budget.id, 0, 9) == []


@pytest.mark.parametrize("cost", [Fraction(0), Fraction(-1, 10)])
def test_nothing_is_free(ledger: Ledger, cost: Fraction) -> None:
    with pytest.raises(ValueError, match="a release costs something"):
        ledger.charges.reserve(open_budget(ledger).id, spend(cost), charge_request())


def test_a_dataset_has_one_open_budget(ledger: Ledger) -> None:
    first = open_budget(ledger, "census")
    with pytest.raises(DatasetTaken, match=f"'census' has the open budget {first.id}"):
        open_budget(ledger, "census")
    other = open_budget(ledger, "prices")
    assert ledger.budgets.close(first.id, "key_admin").state == "closed"
    second = open_budget(ledger, "census")
    assert [budget.id for budget in ledger.budgets.page(9)] == [first.id, other.id, second.id]
    assert [budget.id for budget in ledger.budgets.page(1, after=first.id)] == [other.id]


def test_a_closed_budget_takes_no_charge_and_its_charges_go_on(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    charge, refunded = charged(ledger, budget, 1), charged(ledger, budget, 2)
    assert ledger.budgets.close(budget.id, "key_admin") == ledger.budgets.close(budget.id, "key_admin")
    with pytest.raises(BudgetClosed):
        charged(ledger, budget, 3)
    with pytest.raises(BudgetClosed):
        ledger.budgets.quote(budget.id, spend(), "key_a", ())
    assert ledger.charges.reserve(budget.id, spend(), charge_request(1)).replayed
    claimed(ledger, charge)
    ledger.charges.release(charge.id, OUTCOME, ANSWER)
    assert ledger.charges.refund(refunded.id, "never queued", forget_key=False)
    assert ledger.budgets.get(budget.id).spent == {"epsilon": "0.1"}
    assert ledger.budgets.verify(budget.id).ok


def test_a_quote_charges_nothing(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    assert asdict(ledger.budgets.quote(budget.id, spend("0.4"), "key_a", ())) == {
        "fits": True,
        "cost": {"epsilon": "0.4"},
        "remaining": {"epsilon": "0.6"},
    }
    assert asdict(ledger.budgets.quote(budget.id, spend("1.1"), "key_a", ())) == {
        "fits": False,
        "cost": {"epsilon": "1.1"},
        "remaining": {"epsilon": "1"},
    }
    assert ledger.budgets.get(budget.id) == budget


def test_the_same_request_is_given_its_charge(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    first = ledger.charges.reserve(budget.id, spend(), charge_request())
    again = ledger.charges.reserve(budget.id, spend(), charge_request())
    assert (first.replayed, again.replayed) == (False, True)
    assert (
        first.charge
        == again.charge
        == ledger.charges.of_request("key_a", "request 1", charge_request(1).fingerprint)
        == ledger.charges.get(first.charge.id)
    )
    assert ledger.budgets.get(budget.id).seq == 1
    assert ledger.charges.of_request("key_b", "request 1", charge_request(1).fingerprint) is None


def test_a_request_is_given_its_charge_whatever_became_of_it(ledger: Ledger) -> None:
    budget = open_budget(ledger, epsilon="0.1")
    charge = charged(ledger, budget)
    claimed(ledger, charge)
    ledger.charges.release(charge.id, OUTCOME, ANSWER)
    again = ledger.charges.reserve(budget.id, spend(), charge_request())
    assert (again.charge.state, again.charge.outcome, again.replayed) == ("released", OUTCOME, True)


def test_another_request_under_the_same_key_is_refused(ledger: Ledger) -> None:
    budget, other = open_budget(ledger), open_budget(ledger, "another")
    charged(ledger, budget)
    for target in (budget, other):
        with pytest.raises(KeyReused):
            ledger.charges.reserve(target.id, spend(), charge_request(1, fingerprint="another request"))
    assert not ledger.charges.reserve(budget.id, spend(), charge_request(1, owner="key_b")).replayed
    assert (ledger.budgets.get(budget.id).seq, ledger.budgets.get(other.id).seq) == (2, 0)


def test_the_noise_key_is_the_same_at_each_claim_and_another_for_each_charge(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    one, other = charged(ledger, budget, 1), charged(ledger, budget, 2)
    keys = [claimed(ledger, one), claimed(ledger, one), claimed(ledger, other)]
    assert keys[0] == keys[1] != keys[2]
    assert [len(key) for key in keys] == [32] * 3
    assert ledger.charges.get(one.id).state == "claimed"


def test_the_noise_key_is_neither_in_the_database_nor_printed(ledger: Ledger, engine: Engine) -> None:
    charge = charged(ledger, open_budget(ledger))
    found = ledger.charges.claim(charge.id, **RELEASE)
    assert found == ledger.charges.claim(charge.id, **RELEASE)
    assert repr(found) == f"NoiseKey(charge_id='{charge.id}')"
    with engine.connect() as connection:
        [[wrapped]] = connection.execute(select(SEEDS.c.wrapped)).all()
    assert len(wrapped) == 12 + 32 + 16  # nonce, seed, tag


@pytest.mark.parametrize("part", ["operation", "params", "inputs", "version"])
def test_nothing_is_released_on_what_changed_since_it_was_charged(ledger: Ledger, part: str) -> None:
    charge = charged(ledger, open_budget(ledger))
    with pytest.raises(ChargeChanged, match=f"^{part} of {charge.id} changed") as refused:
        claimed(ledger, charge, **{part: RELEASE[part] + " "})
    assert refused.value.what == (part,)
    assert ledger.charges.get(charge.id).state == "charged"
    claimed(ledger, charge)
    ledger.charges.release(charge.id, OUTCOME, ANSWER)
    with pytest.raises(ChargeChanged):  # nor is what was released told for it
        claimed(ledger, charge, **{part: RELEASE[part] + " "})


def test_a_charge_has_one_answer(ledger: Ledger) -> None:
    charge = charged(ledger, open_budget(ledger))
    with pytest.raises(NotClaimed):
        ledger.charges.release(charge.id, OUTCOME, ANSWER)
    claimed(ledger, charge)
    first = ledger.charges.release(charge.id, OUTCOME, ANSWER)
    again = ledger.charges.release(charge.id, '{"result":"elsewhere"}', ANSWER)
    assert again == first == Released(OUTCOME, first.digest)
    assert ledger.charges.claim(charge.id, **RELEASE) == first
    with pytest.raises(ChargeChanged, match="answer of"):
        ledger.charges.release(charge.id, OUTCOME, b"another answer")
    with pytest.raises(ChargeEnded, match=r"is released$"):
        ledger.charges.fail(charge.id, "too late")
    assert not ledger.charges.refund(charge.id, "too late", forget_key=True)
    assert first.digest != ANSWER.hex()
    found = ledger.charges.get(charge.id)
    assert (found.state, found.outcome) == ("released", OUTCOME)


def test_a_failed_charge_stays_spent(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    charge = charged(ledger, budget)
    with pytest.raises(NotClaimed):
        ledger.charges.fail(charge.id, "before anybody had its noise")
    claimed(ledger, charge)
    ledger.charges.fail(charge.id, "the worker died three times")
    ledger.charges.fail(charge.id, "again")
    with pytest.raises(ChargeEnded, match="is failed: the worker died three times"):
        claimed(ledger, charge)
    with pytest.raises(ChargeEnded):
        ledger.charges.release(charge.id, OUTCOME, ANSWER)
    assert not ledger.charges.refund(charge.id, "too late", forget_key=False)
    assert ledger.charges.get(charge.id).reason == "the worker died three times"
    assert ledger.budgets.get(budget.id).spent == {"epsilon": "0.1"}


def test_only_a_charge_that_was_never_claimed_is_given_back(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    kept, back = charged(ledger, budget, 1), charged(ledger, budget, 2)
    claimed(ledger, kept)
    assert not ledger.charges.refund(kept.id, "changed my mind", forget_key=True)
    assert ledger.charges.refund(back.id, "not queued", forget_key=False)
    assert ledger.charges.refund(back.id, "again", forget_key=False)
    with pytest.raises(ChargeEnded, match="is void: not queued"):
        claimed(ledger, back)
    assert [(entry.kind, entry.charge_id, entry.reason) for entry in ledger.budgets.history(budget.id, 0, 9)] == [
        ("charge", kept.id, ""),
        ("charge", back.id, ""),
        ("refund", back.id, "not queued"),
    ]
    assert ledger.budgets.get(budget.id).spent == {"epsilon": "0.1"}
    assert ledger.budgets.verify(budget.id).ok


def test_a_key_may_be_used_anew_where_its_charge_was_forgotten_and_not_otherwise(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    kept, forgotten = charged(ledger, budget, 1), charged(ledger, budget, 2)
    ledger.charges.refund(kept.id, "the job was canceled", forget_key=False)
    ledger.charges.refund(forgotten.id, "the queue was full", forget_key=True)
    assert ledger.charges.reserve(budget.id, spend(), charge_request(1)).charge.state == "void"
    again = ledger.charges.reserve(budget.id, spend("0.2"), charge_request(2, fingerprint="another request"))
    assert not again.replayed
    assert again.charge.id != forgotten.id
    assert ledger.charges.refund(forgotten.id, "again", forget_key=True)
    assert ledger.charges.of_request("key_a", "request 2", "another request") == again.charge
    assert ledger.budgets.verify(budget.id).ok


def test_jobs_wait_in_the_outbox_until_their_charge_ends(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    charges = [charged(ledger, budget, number) for number in range(1, 6)]
    for charge in charges[1:4]:
        claimed(ledger, charge)
    ledger.charges.release(charges[2].id, OUTCOME, ANSWER)
    ledger.charges.fail(charges[3].id, "a test")
    ledger.charges.refund(charges[4].id, "a test", forget_key=False)
    assert [(one.job_id, one.job, one.state) for one in ledger.charges.open(0, 9)] == [
        ("job_0001", '{"id":"job_0001"}', "charged"),
        ("job_0002", '{"id":"job_0002"}', "claimed"),
    ]
    assert [one.charge_id for one in ledger.charges.open(0, 1)] == [charges[0].id]
    assert ledger.charges.open(60, 9) == []


def test_a_job_of_the_outbox_waits_for_no_clock_that_was_set_back(ledger: Ledger, engine: Engine) -> None:
    charge = charged(ledger, open_budget(ledger))
    with writing(engine) as connection:
        connection.execute(update(OUTBOX).values(at=OUTBOX.c.at + 3600 * 10**6))
    assert [one.charge_id for one in ledger.charges.open(60, 9)] == [charge.id]


def test_what_has_ended_has_no_seed(ledger: Ledger, engine: Engine) -> None:
    budget = open_budget(ledger)
    charges = [charged(ledger, budget, number) for number in range(1, 4)]
    claimed(ledger, charges[0])
    ledger.charges.release(charges[0].id, OUTCOME, ANSWER)
    claimed(ledger, charges[1])
    ledger.charges.fail(charges[1].id, "a test")
    ledger.charges.refund(charges[2].id, "a test", forget_key=True)
    with engine.connect() as connection:
        assert connection.execute(select(SEEDS)).all() == connection.execute(select(OUTBOX)).all() == []


@pytest.mark.parametrize(
    "alike",
    [
        "Patients  of\u00a0Ward 7 \u00c4",
        " PATIENTS of ward 7 a\u0308",
        "patients of ward \uff17 \u00e4",
    ],
)
def test_datasets_that_differ_in_case_blanks_or_encoding_alone_are_one(ledger: Ledger, alike: str) -> None:
    first = open_budget(ledger, "Patients of Ward 7 \u00c4")
    with pytest.raises(DatasetTaken, match=first.id):
        open_budget(ledger, alike)
    ledger.budgets.close(first.id, "key_admin")
    assert open_budget(ledger, alike).dataset == alike, "it is kept as it is written"


@pytest.mark.parametrize("hidden", ["\u200b", "\u00ad", "\ufeff", "\u3164", "\ufe0f", "\x7f", "\u2028", "\u034f"])
def test_a_dataset_with_characters_that_cannot_be_seen_is_refused(ledger: Ledger, hidden: str) -> None:
    with pytest.raises(NotADataset, match=rf"character 4 of the name is U\+{ord(hidden):04X}"):
        open_budget(ledger, f"pat{hidden}ients")
    with pytest.raises(NotADataset, match="nothing but blanks"):
        open_budget(ledger, " \u3000 ")


def test_a_budget_is_charged_by_the_keys_and_for_the_arrays_of_its_rules_alone(ledger: Ledger) -> None:
    mine, other = "blake3:" + "0" * 64, "blake3:" + "1" * 64
    budget = open_budget(ledger, rules=Rules(charge_keys=("key_a",)))
    ledger.charges.reserve(budget.id, spend(), charge_request(1, inputs=f'{{"values":"{other}"}}'))
    with pytest.raises(NotAllowed, match=f"the key key_b may not charge {budget.id}"):
        ledger.charges.reserve(budget.id, spend(), charge_request(2, owner="key_b"))
    ledger.budgets.change_rules(budget.id, Rules(charge_keys=("key_a", "key_b"), arrays=(mine,)), "key_admin")
    assert ledger.budgets.rules(budget.id) == Rules(charge_keys=("key_a", "key_b"), arrays=(mine,))
    ledger.charges.reserve(budget.id, spend(), charge_request(2, owner="key_b", inputs=f'{{"values":"{mine}"}}'))
    for ask in (
        lambda: charged(ledger, budget, 3, inputs=f'{{"values":"{mine}","weights":"{other}"}}'),
        lambda: ledger.budgets.quote(budget.id, spend(), "key_a", [other]),
    ):
        with pytest.raises(NotAllowed, match=f"{other} may not be charged to {budget.id}"):
            ask()
    ledger.budgets.change_rules(budget.id, ledger.budgets.rules(budget.id), "key_admin")  # as they are: nothing
    entries = ledger.budgets.history(budget.id, 0, 9)
    assert [entry.kind for entry in entries] == ["rules", "charge", "rules", "charge"]
    assert ledger.budgets.verify(budget.id).ok
    ledger.budgets.close(budget.id, "key_admin")
    with pytest.raises(BudgetClosed):
        ledger.budgets.change_rules(budget.id, Rules(), "key_admin")


def test_a_charge_finds_the_rules_by_an_index(ledger: Ledger, engine: Engine) -> None:
    """Which a database of an earlier release gets as well."""
    with writing(engine) as connection:
        connection.execute(text("DROP INDEX budget_rules"))
        connection.execute(text("UPDATE facts SET value = '2' WHERE name = 'schema'"))
    create_tables(engine)
    assert "budget_rules" in {index["name"] for index in inspect(engine).get_indexes("budget_entries")}
    if engine.dialect.name == "sqlite":
        budget = open_budget(ledger)
        plans = []
        with engine.connect() as connection:
            event.listen(connection, "before_cursor_execute", lambda *arguments: plans.append(arguments[2]))
            rules_of(connection, budget.id)
            statement = plans[-1]
            [(*_, plan)] = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", (budget.id, 1, 0)).all()
        assert "USING INDEX budget_rules" in plan


def test_what_is_not_there_is_told(ledger: Ledger) -> None:
    charge = replace(charged(ledger, open_budget(ledger)), id="charge_" + "0" * 32)
    questions: list[Callable[[], object]] = [
        lambda: ledger.charges.get(charge.id),
        lambda: claimed(ledger, charge),
        lambda: ledger.charges.release(charge.id, OUTCOME, ANSWER),
        lambda: ledger.charges.fail(charge.id, "a test"),
        lambda: ledger.charges.refund(charge.id, "a test", forget_key=True),
    ]
    for ask in questions:
        with pytest.raises(UnknownCharge, match=charge.id):
            ask()
    close, history = partial(ledger.budgets.close, by="key_admin"), partial(ledger.budgets.history, after=0, limit=1)
    for question in (ledger.budgets.get, close, ledger.budgets.verify, history):
        with pytest.raises(UnknownBudget):
            question("budget_" + "0" * 32)
    with pytest.raises(UnknownBudget):
        ledger.charges.reserve("budget_" + "0" * 32, spend(), charge_request(99))


def test_anyone_can_recompute_the_chain_from_the_history(ledger: Ledger) -> None:
    budget = open_budget(ledger)
    for number in range(1, 4):
        charge = charged(ledger, budget, number)
    ledger.charges.refund(charge.id, "a test", forget_key=False)
    before = budget.head
    entries = ledger.budgets.history(budget.id, 0, 2) + ledger.budgets.history(budget.id, 2, 9)
    for number, entry in enumerate(entries, start=1):
        fields = asdict(entry)
        digest = fields.pop("hash")
        assert (fields["seq"], fields["prev"]) == (number, before)
        before = hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        assert digest == before
    assert before == ledger.budgets.get(budget.id).head
    assert [entry.hash for entry in entries[:3]] == [ledger.charges.get(entry.charge_id).hash for entry in entries[:3]]


def test_the_database_refuses_to_change_what_is_settled(ledger: Ledger, engine: Engine) -> None:
    budget = open_budget(ledger)
    charged(ledger, budget)
    changes = [
        update(ENTRIES).values(amounts='{"epsilon":"0"}'),
        delete(ENTRIES),
        update(BUDGETS).values(total='{"epsilon":"9"}'),
        delete(BUDGETS),
    ]
    if engine.dialect.name == "postgresql":
        changes.append(text("TRUNCATE budget_entries"))
    for change in changes:
        with pytest.raises(IntegrityError, match="never changed"), writing(engine) as connection:
            connection.execute(change)
    assert ledger.budgets.verify(budget.id).ok


def test_a_key_that_is_not_the_databases_is_found_at_the_start(ledger: Ledger, engine: Engine, key: bytes) -> None:
    charge = charged(ledger, open_budget(ledger))
    stranger = Ledger(engine, bytes(32))
    with pytest.raises(WrongKey, match="made with another key"):
        stranger.prepare()
    again = Ledger(engine, key)
    again.prepare()
    assert claimed(again, charge) == claimed(ledger, charge)


def test_tables_of_a_newer_release_are_left_alone(ledger: Ledger, engine: Engine) -> None:
    with writing(engine) as connection:
        connection.execute(update(FACTS).where(FACTS.c.name == "schema").values(value=str(SCHEMA + 1)))
    with pytest.raises(UnusableDatabase, match=f"tables of version {SCHEMA + 1}, this release knows {SCHEMA}"):
        ledger.prepare()


def test_a_seed_opens_for_its_own_charge_alone(ledger: Ledger, engine: Engine) -> None:
    budget = open_budget(ledger)
    one, other = charged(ledger, budget, 1), charged(ledger, budget, 2)
    with writing(engine) as connection:
        wrapped = connection.scalar(select(SEEDS.c.wrapped).where(SEEDS.c.charge_id == one.id))
        connection.execute(delete(SEEDS).where(SEEDS.c.charge_id == other.id))
        connection.execute(insert(SEEDS).values(charge_id=other.id, wrapped=wrapped))
    with pytest.raises(WrongKey, match=f"seed of {other.id} does not open"):
        claimed(ledger, other)
    assert ledger.charges.get(other.id).state == "charged"


def test_every_accountant_keeps_its_amounts(ledger: Ledger) -> None:
    totals = {"epsilon": "1", "delta": "1e-6", "rho": "0.5"}
    for accountant, names in AMOUNTS.items():
        given = {name: totals[name] if name in names else None for name in totals}
        budget = open_budget(ledger, accountant, accountant=accountant, **given)
        assert list(budget.total) == list(names)
        assert ledger.charges.reserve(budget.id, spend(), charge_request(len(names))).replayed is (accountant == "zcdp")
