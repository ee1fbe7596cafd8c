"""The checker finds each kind of fault in a history where it is planted, and none in one without."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import Verdict, check
from tests.chaos.history import Entry, History, read

CLEAN = {"rsi": "answer of rsi", "sma": "answer of sma"}
EVENTS = ("queued", "running", "succeeded")


def entry(at: float, what: Any, **item: Any) -> Entry:
    return Entry(at=at, what=what, by=item.pop("by", "client"), **item)


def reading(at: float, job: str, state: str = "succeeded", **item: Any) -> Entry:
    final = state not in ("queued", "running")
    values = {"began": at - 0.1, "final": final, "attempt": 1, **item}
    if final:
        values = {"record": f"record of {job}", "provenance": f"provenance of {job}", **values}
    return entry(at, "seen", job=job, state=state, **values)


def sound() -> list[Entry]:
    """Two jobs with a key each, one without, one refused, one of unknown fate that was sent again."""
    return [
        entry(0.0, "submitted", submission=1, request="rsi", key="k1", ends=("succeeded",)),
        entry(0.1, "acknowledged", submission=1, job="a", state="queued"),
        entry(0.2, "submitted", submission=2, request="sma", key="k2", ends=("succeeded",)),
        entry(0.3, "unknown", submission=2, detail="ConnectionError"),
        entry(0.4, "acknowledged", submission=2, job="b", state="queued"),
        entry(0.5, "submitted", submission=3, request="sma", ends=("succeeded",)),
        entry(0.6, "acknowledged", submission=3, job="c", state="queued"),
        entry(0.7, "submitted", submission=4, request="rsi", ends=("succeeded",)),
        entry(0.8, "refused", submission=4, detail="queue-full"),
        entry(0.9, "submitted", submission=5, request="rsi", key="k1", ends=("succeeded",)),
        entry(1.0, "acknowledged", submission=5, job="a", state="running"),
        entry(1.1, "fault", by="kills", detail="child"),
        reading(1.2, "a", "running"),
        reading(2.0, "a", answer="answer of rsi"),
        reading(2.1, "b", answer="answer of sma"),
        reading(2.2, "c", answer="answer of sma"),
        reading(3.0, "a", by="auditor", answer="answer of rsi"),
        *(entry(3.1, "told", job=job, events=EVENTS) for job in "abc"),
        *(entry(3.2, "listed", job=job) for job in "abc"),
    ]


def faults(*more: Entry, without: Any = lambda item: False) -> dict[str, set[str]]:
    """The faulty jobs by kind, of a sound history with some more in it or some left out."""
    history = sorted([item for item in sound() if not without(item)] + list(more), key=lambda item: item.at)
    verdict = check(history, CLEAN)
    found: dict[str, set[str]] = {}
    for kind, job, _ in verdict.faults():
        found.setdefault(kind, set()).add(job)
    assert verdict.right is not bool(found)
    return found


def test_a_sound_history_is_right() -> None:
    verdict = check(sound(), CLEAN)
    assert verdict == Verdict(acknowledged=3)
    assert verdict.right


def test_a_job_nobody_saw_the_end_of_is_lost() -> None:
    assert faults(without=lambda item: item.job == "b" and item.what != "acknowledged") == {"lost": {"b"}}
    assert faults(without=lambda item: item.job == "a" and item.final) == {"lost": {"a"}}


def test_a_job_that_is_gone_is_lost_even_after_its_end_was_seen() -> None:
    assert faults(entry(4.0, "gone", job="a", detail="404 unknown-job")) == {"lost": {"a"}}


def test_a_job_that_succeeded_without_an_answer_is_lost() -> None:
    history = [replace(item, answer=None) if item.job == "b" else item for item in sound()]
    assert set(check(history, CLEAN).lost) == {"b"}


def test_an_end_that_no_event_tells_is_lost() -> None:
    assert faults(
        entry(4.0, "told", job="c", events=EVENTS[:2]), without=lambda item: item.job == "c" and item.what == "told"
    ) == {"lost": {"c"}}


def test_the_ends_of_two_attempts_are_a_duplicate() -> None:
    assert faults(reading(4.0, "a", attempt=2)) == {"duplicated": {"a"}}


def test_two_final_events_are_a_duplicate() -> None:
    assert faults(entry(4.0, "told", job="a", events=(*EVENTS, "succeeded"))) == {"duplicated": {"a"}}


def test_two_jobs_for_one_key_are_a_duplicate() -> None:
    found = faults(
        entry(4.0, "acknowledged", submission=5, job="d"),
        reading(4.1, "d", answer="answer of rsi"),
        entry(4.2, "listed", job="d"),
    )
    assert found == {"duplicated": {"k1"}}


@pytest.mark.parametrize(
    "other",
    [
        {"answer": "answer of rsi", "record": "another"},
        {"provenance": "another"},
        {"state": "canceled"},
    ],
)
def test_an_end_that_changes_is_found_by_whoever_sees_it(other: dict[str, Any]) -> None:
    assert "a" in faults(reading(4.0, "a", by="somebody else", **other))["changed"]


def test_an_answer_that_changes_is_found_and_one_of_both_is_wrong() -> None:
    assert faults(reading(4.0, "a", answer="another")) == {"changed": {"a"}, "wrong": {"a"}}


def test_a_job_that_runs_again_after_its_end_has_changed() -> None:
    assert faults(reading(4.0, "a", "running")) == {"changed": {"a"}}


def test_a_look_that_began_before_the_end_may_be_older() -> None:
    assert faults(reading(4.0, "a", "running", began=1.9)) == {}


def test_events_that_tell_another_end_are_a_change() -> None:
    assert faults(
        entry(4.0, "told", job="a", events=("queued", "expired")),
        without=lambda item: item.job == "a" and item.what == "told",
    ) == {"changed": {"a"}}


def test_the_answer_of_another_request_is_wrong() -> None:
    history = [replace(item, answer="answer of rsi") if item.job == "c" and item.final else item for item in sound()]
    assert set(check(history, CLEAN).wrong) == {"c"}


@pytest.mark.parametrize("state", ["canceled", "expired", "failed"])
def test_an_end_nobody_asked_for_is_wrong(state: str) -> None:
    history = [
        replace(item, state=state, code="worker-died", answer=None)
        if item.job == "c" and item.final
        else replace(item, events=("queued", state))
        if item.job == "c" and item.what == "told"
        else item
        for item in sound()
    ]
    assert [(kind, job) for kind, job, _ in check(history, CLEAN).faults()] == [("wrong", "c")]
    history[0:0] = [entry(0.0, "canceling", job="c")]
    assert check(history, CLEAN).right is (state == "canceled")


def test_a_job_that_no_submission_explains_is_unexpected() -> None:
    assert faults(entry(4.0, "listed", job="d")) == {"unexpected": {"d"}}
    unknown = (
        entry(4.0, "submitted", submission=6, request="rsi"),
        entry(4.1, "unknown", submission=6),
        entry(4.2, "listed", job="d"),
    )
    assert faults(*unknown) == {}
    assert faults(*unknown, entry(4.3, "listed", job="e")) == {"unexpected": {"d", "e"}}


def test_a_key_that_was_told_its_job_explains_no_other() -> None:
    again = (
        entry(4.0, "submitted", submission=6, request="rsi", key="k1"),
        entry(4.1, "unknown", submission=6),
        entry(4.2, "listed", job="d"),
    )
    assert faults(*again) == {"unexpected": {"d"}}


def test_a_history_that_was_written_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.add("submitted", "client", submission=1, request="rsi", ends=("succeeded", "failed: worker-died"))
        history.add("seen", "client", job="a", state="running", final=False, began=1.0)
        history.add("told", "auditor", job="a", events=EVENTS)
        written = history.entries()
    assert tuple(read(path)) == written
