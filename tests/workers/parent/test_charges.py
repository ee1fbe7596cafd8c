"""A job that a budget was charged for: one answer whatever happens to workers, and none without its charge."""

import json
import os
import signal
import time
from collections.abc import Iterator
from fractions import Fraction
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr, ValidationError

from tests.claims import take
from tests.workers.conftest import OWNER, Desk
from tests.workers.operations import PAID
from tests.workers.parent.test_private_jobs import everything
from warpdesk.models import ChargeRef, State
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.spend import Spend
from warpdesk_server.privacy.budgets import NewBudget
from warpdesk_server.privacy.charges import Charge, ChargeRequest
from warpdesk_server.privacy.charging import Charges, NoiseKey
from warpdesk_server.privacy.database import DatabaseUnavailable
from warpdesk_server.privacy.database import connect as connect_database
from warpdesk_server.privacy.ledger import Ledger
from warpdesk_server.privacy.seeds import Ring, Secrets
from warpdesk_server.workers.child import execute
from warpdesk_server.workers.child import main as child
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.child.main import TICK_SECONDS, until_tick
from warpdesk_server.workers.parent.claims import Claims
from warpdesk_server.workers.parent.endings import Endings
from warpdesk_server.workers.pipe import Assignment, Attempt
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Succeeded
from warpdesk_server.workers.queue.records import Claim, Ending, Held
from warpdesk_server.workers.settings import WorkerSettings

TENTH = Spend(Fraction(1, 10), (Fraction(1, 10), Fraction(0)), None, "add_remove")


class Till:
    """Charges jobs as the API does."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.engine = connect_database(f"sqlite:///{desk.home}/ledger.db")
        self.ledger = Ledger(self.engine, Ring(desk.home / "ledger.key"))
        self.ledger.prepare()
        self.budget = self.ledger.budgets.open(NewBudget("n", "d", "pure", "add_remove", OWNER, epsilon="1")).id

    def charge(self, **params: Any) -> JobRequest:
        """A job that is charged, and in no queue yet."""
        secret = self._desk.array([1234567890123, 6], "int64")
        job = self._desk.request("whisper", {"secret": secret}, params={"budget": self.budget, **params})
        version = PAID["whisper"].release_version
        order = ChargeRequest(
            *(OWNER, job.id, job.id, job.operation, job.canonical_params, job.canonical_inputs, version, job.id, "{}")
        )
        made = self.ledger.charges.reserve(self.budget, TENTH, order).charge
        return job.model_copy(update={"charge": ChargeRef(id=made.id, budget=made.budget_id, head=made.hash)})

    def submit(self, **params: Any) -> JobRequest:
        job = self.charge(**params)
        self._desk.queue.enqueue(job)
        return job

    def of(self, job: JobRequest) -> Charge:
        assert job.charge is not None
        return self.ledger.charges.get(job.charge.id)

    def key(self, job: JobRequest) -> bytes:
        """The noise key, as a worker is given it."""
        assert job.charge is not None
        content = {"params": job.canonical_params, "inputs": job.canonical_inputs}
        found = self.ledger.charges.claim(job.charge.id, operation="whisper", version="whisper 1", **content)
        assert isinstance(found, NoiseKey)
        return found.key


@pytest.fixture
def till(desk: Desk) -> Iterator[Till]:
    till = Till(desk)
    yield till
    till.engine.dispose()


def start(desk: Desk, **environment: str) -> None:
    desk.start_worker(WARPDESK_OPERATIONS="tests.workers.operations:PAID", **environment)


def claims_of(desk: Desk) -> Claims:
    return Claims(WorkerSettings(home=desk.home), PAID)


def compute(desk: Desk, till: Till, job: Held) -> Succeeded:
    """An attempt's answer, as the worker's child makes it."""
    keys = {job.id: till.key(job.request)}
    (outcome,) = execute.run([(job.request, job.attempt)], desk.store, without_gpu("not needed"), PAID, keys=keys)
    assert isinstance(outcome, Succeeded), outcome
    return outcome


def noisy(desk: Desk, result: str | None) -> list[int]:
    assert result is not None
    answer: list[int] = np.load(desk.store.result(result) / "noisy.npy").tolist()
    return answer


def test_an_answer_says_what_was_charged_and_the_seed_is_gone_before_anyone_sees_it(desk: Desk, till: Till) -> None:
    job = till.submit()
    start(desk)
    record = desk.wait(job.id)
    assert record.state is State.SUCCEEDED, record
    assert record.provenance is not None
    assert record.provenance.charge == job.charge
    assert till.of(job).state == "released"
    with till.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM charge_seeds").scalar() == 0
        assert connection.exec_driver_sql("SELECT count(*) FROM charge_outbox").scalar() == 0


def test_an_attempt_whose_process_was_killed_is_run_again_with_the_same_noise(desk: Desk, till: Till) -> None:
    marker = desk.marker("key")
    start(desk)
    with desk.gate() as gate:
        job = till.submit(marker=str(marker), gate=gate)
        desk.until(marker.exists, "it did not begin")
        first = marker.read_bytes()
        marker.unlink()
        report = desk.queue.workers()[0]
        assert report.child_pid is not None
        os.kill(report.child_pid, signal.SIGKILL)
        desk.until(lambda: marker.exists() and len(marker.read_bytes()) == 32, "it was not run again")
    record = desk.wait(job.id)
    assert (record.state, record.attempt) == (State.SUCCEEDED, 2)
    assert marker.read_bytes() == first
    assert noisy(desk, record.result) == [
        1234567890129 + part for part in (np.frombuffer(first, np.uint64).astype(np.int64) >> 32).tolist()
    ]


def test_an_answer_that_was_committed_before_a_worker_died_is_the_answer_and_nothing_is_computed_again(
    desk: Desk, till: Till
) -> None:
    marker = desk.marker("key")
    job = till.submit(marker=str(marker))
    held = take(desk.queue, job.id)
    outcome = compute(desk, till, held)
    marker.unlink()
    claims_of(desk).commit(Ending(held, outcome))
    # Here its worker dies: Redis never hears of the answer, and gives the job to another.
    desk.queue.finish([Ending(held, how="returned")])
    start(desk)
    record = desk.wait(job.id)
    assert (record.state, record.attempt, record.result) == (State.SUCCEEDED, 2, outcome.result)
    assert not marker.exists()
    assert len(noisy(desk, record.result)) == 4


def test_an_answer_that_came_too_late_for_the_queue_is_still_there_for_the_next_attempt(desk: Desk, till: Till) -> None:
    job = till.submit()
    slow = take(desk.queue, job.id)
    outcome = compute(desk, till, slow)
    batch = desk.queue.finish([Ending(slow, how="returned")], then=Claim("another")).then
    assert batch is not None
    endings = Endings(desk.queue, desk.store, PAID, claims=claims_of(desk))
    endings.end([Ending(slow, outcome)])  # stale
    assert noisy(desk, outcome.result)
    _, (adopted,) = claims_of(desk).claim(batch.jobs)
    endings.end([adopted])
    record = desk.queue.get(job.id)
    assert record is not None
    assert (record.state, record.result) == (State.SUCCEEDED, outcome.result)


def test_two_attempts_at_once_give_equal_bytes_and_the_second_changes_nothing(desk: Desk, till: Till) -> None:
    job = till.submit()
    first = take(desk.queue, job.id)
    one = compute(desk, till, first)
    second = Held(job, 2)
    two = compute(desk, till, second)
    assert (one.digest, noisy(desk, one.result)) == (two.digest, noisy(desk, two.result))
    claims = claims_of(desk)
    assert claims.commit(Ending(first, one)).succeeded
    assert claims.commit(Ending(second, two)).succeeded
    other = two.model_copy(update={"digest": "0" * 64})
    refused = claims.commit(Ending(second, other)).outcome
    assert isinstance(refused, Failed)
    assert refused.code == "charge-changed"
    assert json.loads(str(till.of(job).outcome))["result"] == one.result


def test_a_job_that_names_a_budget_and_was_not_charged_is_not_computed(desk: Desk, till: Till) -> None:
    secret = desk.array([1, 2], "int64")
    marker = desk.marker("key")
    params = {"budget": till.budget, "marker": str(marker)}
    job = desk.request("whisper", {"secret": secret}, params=params)
    (outcome,) = execute.run([(job, 1)], desk.store, without_gpu("not needed"), PAID)
    assert isinstance(outcome, Failed)
    assert "nothing was charged" in outcome.message
    assert not marker.exists()


def test_dp_noise_too_draws_nothing_for_a_budget_that_was_not_charged(desk: Desk) -> None:
    values = desk.array([1.0, 2.0])
    params = {
        "mechanism": "discrete_laplace",
        "mode": "aggregate",
        "epsilon": "1",
        "sensitivity": {"norm": "l1", "value": "1"},
        "budget": "budget_" + "0" * 32,
    }
    job = desk.request("dp_noise", {"values": values}, params=params)
    (outcome,) = execute.run([(job, 1)], desk.store, without_gpu("not needed"), OPERATIONS)
    assert isinstance(outcome, Failed)
    assert "nothing was charged" in outcome.message


@pytest.mark.parametrize("what", ["params", "inputs"])
def test_a_request_that_was_changed_after_it_was_charged_is_refused_and_stays_spent(
    desk: Desk, till: Till, what: str
) -> None:
    marker = desk.marker("key")
    job = till.charge(marker=str(marker))
    changed = {
        "params": {**job.params, "gate": ""},
        "inputs": {"secret": desk.array([1234567890123, 7], "int64")},
    }
    desk.queue.enqueue(job.model_copy(update={what: changed[what]}))
    start(desk)
    record = desk.wait(job.id)
    assert record.error is not None
    assert record.error.code == "charge-changed"
    assert not marker.exists()


def test_an_input_whose_file_was_changed_after_the_charge_is_refused(desk: Desk, till: Till) -> None:
    job = till.submit()
    held = take(desk.queue, job.id)
    file = desk.store.path(OWNER, job.inputs["secret"])
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    keys = {job.id: till.key(job)}
    (outcome,) = execute.run([(job, held.attempt)], desk.store, without_gpu("not needed"), PAID, keys=keys)
    assert isinstance(outcome, Failed)
    assert "not what was there" in outcome.message


def test_a_job_whose_charge_was_refunded_is_not_computed(desk: Desk, till: Till) -> None:
    marker = desk.marker("key")
    job = till.submit(marker=str(marker))
    assert job.charge is not None
    assert till.ledger.charges.refund(job.charge.id, "canceled", forget_key=False)
    start(desk)
    record = desk.wait(job.id)
    assert record.error is not None
    assert (record.error.code, marker.exists()) == ("charge-ended", False)


def test_without_its_ledger_a_worker_computes_no_charged_job_and_all_others(desk: Desk, till: Till) -> None:
    job = till.submit()
    start(desk, WARPDESK_LEDGER_URL="postgresql://nobody@127.0.0.1:1/none")
    record = desk.wait(job.id)
    assert record.error is not None
    assert (record.error.code, record.error.retryable) == ("ledger-unavailable", True)
    assert till.of(job).state == "charged"
    assert desk.wait(desk.submit()).state is State.SUCCEEDED


def test_an_answer_the_ledger_took_without_a_word_is_there_for_the_next_attempt(desk: Desk, till: Till) -> None:
    job = till.submit()
    held = take(desk.queue, job.id)
    outcome = compute(desk, till, held)
    claims = claims_of(desk)
    charges = claims._charges

    def lost(*arguments: Any) -> None:
        Charges.release(charges, *arguments)
        raise DatabaseUnavailable("the connection was lost")

    charges.release = lost  # type: ignore[method-assign, assignment]
    Endings(desk.queue, desk.store, PAID, (0.0,), claims).end([Ending(held, outcome)])
    assert till.of(job).state == "released"
    assert desk.queue.get(job.id).state is State.QUEUED  # type: ignore[union-attr]
    again = desk.queue.claim(Claim("another"))
    assert again is not None
    _, (adopted,) = claims_of(desk).claim(again.jobs)
    Endings(desk.queue, desk.store, PAID, claims=claims_of(desk)).end([adopted])
    record = desk.queue.get(job.id)
    assert record is not None
    assert (record.state, noisy(desk, record.result)) == (State.SUCCEEDED, noisy(desk, outcome.result))


def test_a_claimed_job_waits_minutes_for_its_ledger_before_it_is_given_up(desk: Desk, till: Till) -> None:
    job = till.submit()
    endings = Endings(desk.queue, desk.store, PAID, (0.0, 0.0))
    away = Failed(code="ledger-unavailable", message="the ledger cannot be reached", retryable=True)
    endings.end([Ending(take(desk.queue, job.id), away)])
    endings.end([Ending(take(desk.queue, job.id), away)])
    endings.end([Ending(take(desk.queue, job.id), away)])
    record = desk.queue.get(job.id)
    assert record is not None
    assert (record.state, desk.queue.claim(Claim("another"))) == (State.QUEUED, None)


def test_a_ledger_that_is_wrong_in_any_way_ends_no_worker(desk: Desk, till: Till) -> None:
    start(desk)
    (desk.home / "ledger.key").chmod(0o644)
    codes = [_failure_of(desk, till.submit())]
    (desk.home / "ledger.key").chmod(0o600)
    for change in (
        "UPDATE charges SET state = 'claimed' WHERE id = '{}'",
        "DELETE FROM charge_seeds WHERE charge_id = '{}'",
    ):
        job = till.charge()
        with till.engine.begin() as connection:
            connection.exec_driver_sql(change.format(till.of(job).id))
        desk.queue.enqueue(job)
        codes.append(_failure_of(desk, job))
    assert codes == ["ledger-unavailable", "charge-changed", "ledger-unavailable"]
    assert desk.workers[0].poll() is None


def test_a_ledger_that_hangs_holds_a_worker_no_longer_than_its_patience(
    desk: Desk, till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = take(desk.queue, till.submit().id)
    monkeypatch.setattr("warpdesk_server.workers.parent.claims.PATIENCE", 0.5)
    claims = claims_of(desk)
    assert claims.claim([Held(till.submit(), 1)])[0]  # connected by now
    with till.engine.begin():  # nobody else may write
        began = time.monotonic()
        keys, (refused,) = claims.claim([held])
        assert time.monotonic() - began < 5.0
    assert (keys, isinstance(refused.outcome, Failed) and refused.outcome.code) == ({}, "ledger-unavailable")
    desk.until(lambda: claims.claim([held])[0], "it does not answer")


def _failure_of(desk: Desk, job: JobRequest) -> str:
    error = desk.wait(job.id).error
    assert error is not None
    return error.code


def test_a_worker_of_another_host_is_refused_a_ledger_that_only_one_machine_can_share() -> None:
    remote: dict[str, Any] = {"api_url": "http://api", "api_key": SecretStr("key"), "home": Path("/nowhere")}
    with pytest.raises(ValidationError, match="PostgreSQL"):
        WorkerSettings(ledger_url=SecretStr("sqlite:////var/ledger.db"), **remote)
    assert WorkerSettings(**remote).ledger is None
    shared = SecretStr("postgresql://ledger/warpdesk")
    assert WorkerSettings(ledger_url=shared, **remote).ledger == "postgresql://ledger/warpdesk"


@pytest.mark.parametrize(("operation", "inputs", "waits"), [("whisper", "secret", 1), ("double", "values", 0)])
def test_an_answer_with_noise_waits_for_the_tick_and_no_other_does(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, operation: str, inputs: str, waits: int
) -> None:
    here, there = Pipe()
    answering = object.__new__(child._Child)  # as one that has warmed up on the CPU
    answering._pipe, answering._store = there, desk.store
    answering._operations = answering._computed = PAID
    answering._device, answering._found, answering._costs = None, without_gpu("not needed"), None
    answering._cluster = None
    answering._untried = {}
    slept: list[float] = []
    monkeypatch.setattr("warpdesk_server.workers.child.main.time.sleep", slept.append)
    dtype = "int64" if inputs == "secret" else "float64"
    job = desk.request(operation, {inputs: desk.array([1, 2], dtype)})
    answering._answer(Assignment(jobs=(Attempt(request=job, attempt=1),)))
    assert len(slept) == waits
    assert here.poll()


def test_the_tick_is_a_multiple_by_the_clock() -> None:
    for now in (0.0, 1.0, 12.3456, 99.9999):
        assert 0 < until_tick(now) <= TICK_SECONDS
        ticks = (now + until_tick(now)) / TICK_SECONDS
        assert abs(ticks - round(ticks)) < 1e-6


def test_neither_seed_nor_key_nor_value_nor_noise_is_in_redis_in_a_log_or_in_the_ledger_afterwards(
    desk: Desk, till: Till
) -> None:
    job = till.submit()
    assert job.charge is not None
    with till.engine.connect() as database:
        wrapped = database.exec_driver_sql("SELECT wrapped FROM charge_seeds").scalar()
    assert isinstance(wrapped, bytes)
    seed = Secrets(Ring(desk.home / "ledger.key")).unwrap(wrapped, job.charge.id)
    key = till.key(job)
    database_file = (desk.home / "ledger.db").read_bytes() + (desk.home / "ledger.db-wal").read_bytes()
    assert wrapped in database_file  # what is looked for below can be found
    assert seed not in database_file
    start(desk)
    record = desk.wait(job.id)
    noise = (np.frombuffer(key, np.uint64).astype(np.int64) >> 32).tolist()
    private = [wrapped, seed, seed.hex().encode(), key, key.hex().encode(), b"1234567890123"]
    private += [str(number).encode() for number in noise if abs(number) > 10**6]
    private += [str(number).encode() for number in noisy(desk, record.result)]
    with connect(desk.url) as connection:
        kept = everything(connection)
    kept += desk.log().encode()
    kept += b"".join(file.read_bytes() for file in desk.home.glob("ledger.db*"))
    assert job.charge.id.encode() in kept
    assert [secret for secret in private if secret in kept] == []
