"""Judge a history: every acknowledged job has one visible outcome, for every reader at every time, and the right one.

After Jepsen's checker of queues (total-queue), which asks that each acknowledged enqueue is followed by a dequeue. Here
an outcome can be read again and again, so it must also never change.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from tests.chaos.history import Entry

Found = dict[str, list[str]]  # sentences by the id of a job or the name of a submission

FINAL_EVENTS = frozenset({"succeeded", "failed", "canceled", "expired"})


@dataclass(frozen=True)
class Verdict:
    """What is wrong, by job. A job may be in several."""

    acknowledged: int
    lost: Found = field(default_factory=dict)  # acknowledged, and it never ended, has no answer, or is gone
    duplicated: Found = field(default_factory=dict)  # two outcomes, or two jobs for one Idempotency-Key
    changed: Found = field(default_factory=dict)  # what was seen of its end is not what was seen before
    wrong: Found = field(default_factory=dict)  # another answer than a clean run's, or an end nobody asked for
    unexpected: Found = field(default_factory=dict)  # a job that no submission explains

    @property
    def right(self) -> bool:
        return not list(self.faults())

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """(kind, job, sentence) of everything found."""
        for kind in fields(self):
            found = getattr(self, kind.name)
            if isinstance(found, dict):
                for job, sentences in found.items():
                    for sentence in sentences:
                        yield kind.name, job, sentence

    def __str__(self) -> str:
        failures = list(self.faults())
        shown = [f"{kind}: {job}: {sentence}" for kind, job, sentence in failures[:50]]
        more = [f"... and {len(failures) - 50} more"] if len(failures) > 50 else []
        return "\n".join([f"{self.acknowledged} acknowledged, {len(failures)} faults", *shown, *more])


def check(history: Sequence[Entry], *clean: Mapping[str, str]) -> Verdict:
    """`clean` has the digest of each request's answer when nothing goes wrong: one for each release that answers."""
    submissions = {entry.submission: entry for entry in history if entry.what == "submitted"}
    acknowledged: dict[str, Entry] = {}
    for entry in history:
        if entry.what == "acknowledged" and entry.job is not None:
            acknowledged.setdefault(entry.job, entry)
    readings: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in history:
        if entry.what in ("seen", "gone", "told") and entry.job is not None:
            readings[entry.job].append(entry)
    canceling = {entry.job for entry in history if entry.what == "canceling"}

    lost, duplicated, changed, wrong = (defaultdict[str, list[str]](list) for _ in range(4))
    for job in {**acknowledged, **readings}:
        of_job = readings[job]
        for sentence in _duplicates(of_job):
            duplicated[job].append(sentence)
        for sentence in _changes(of_job):
            changed[job].append(sentence)
        if job not in acknowledged:
            continue
        for sentence in _losses(of_job):
            lost[job].append(sentence)
        submission = submissions[acknowledged[job].submission]
        for sentence in _errors(of_job, submission, job in canceling, clean):
            wrong[job].append(sentence)
    for key, jobs in _jobs_of_keys(history).items():
        if len(jobs) > 1:
            duplicated[key].append(f"one Idempotency-Key has {len(jobs)} jobs: {', '.join(sorted(jobs))}")
    return Verdict(
        len(acknowledged), dict(lost), dict(duplicated), dict(changed), dict(wrong), _unexplained(history, acknowledged)
    )


def _finals(of_job: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in of_job if entry.what == "seen" and entry.final]


def _losses(of_job: Sequence[Entry]) -> Iterator[str]:
    finals = _finals(of_job)
    if not finals:
        last = max((entry for entry in of_job if entry.what == "seen"), key=lambda entry: entry.at, default=None)
        yield f"it never ended; the last that was seen of it is {last.state if last else 'nothing'}"
    elif finals[-1].state == "succeeded" and not any(entry.answer for entry in finals):
        yield "it succeeded and nobody saw its answer"
    for entry in of_job:
        if entry.what == "gone":
            yield f"{entry.by} found no such job or no answer: {entry.detail}"
            break
    streams = [entry for entry in of_job if entry.what == "told"]
    if finals and streams and not any(FINAL_EVENTS & set(entry.events or ()) for entry in streams):
        yield f"its events do not tell its end: {streams[-1].events}"


def _duplicates(of_job: Sequence[Entry]) -> Iterator[str]:
    """A second commit is another attempt's, or another end among the events."""
    attempts = {entry.attempt for entry in _finals(of_job) if entry.attempt is not None}
    if len(attempts) > 1:
        yield f"its end was seen of the attempts {sorted(attempts)}"
    for entry in of_job:
        ends = [name for name in entry.events or () if name in FINAL_EVENTS]
        if len(ends) > 1:
            yield f"its events tell {len(ends)} ends: {', '.join(ends)}"
            break


def _changes(of_job: Sequence[Entry]) -> Iterator[str]:
    finals = _finals(of_job)
    for what in ("state", "code", "record", "provenance", "answer"):
        values = {getattr(entry, what) for entry in finals} - {None}
        if len(values) > 1:
            first = next(entry for entry in finals if getattr(entry, what) is not None)
            other = next(entry for entry in finals if getattr(entry, what) not in (None, getattr(first, what)))
            yield (
                f"its {what} was {getattr(first, what)} for {first.by} and {getattr(other, what)} for {other.by} "
                f"{other.at - first.at:.3f} s later"
            )
    if finals:
        ended = min(entry.at for entry in finals)
        for entry in of_job:
            if entry.what == "seen" and not entry.final and entry.began is not None and entry.began > ended:
                yield f"{entry.by} saw it {entry.state} {entry.began - ended:.3f} s after it had ended"
                break
    ends = {name for entry in of_job for name in entry.events or () if name in FINAL_EVENTS}
    if finals and ends and {finals[0].state} != ends:
        yield f"it is {finals[0].state}, and its events say {', '.join(sorted(ends))}"


def _errors(
    of_job: Sequence[Entry], submission: Entry, canceled: bool, clean: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    allowed = {*(submission.ends or ("succeeded",)), *(("canceled",) if canceled else ())}
    for entry in _finals(of_job):
        end = f"failed: {entry.code}" if entry.state == "failed" else str(entry.state)
        if end not in allowed:
            yield f"it ended {end}, and may only end {' or '.join(sorted(allowed))}"
            break
    expected = [each[submission.request] for each in clean if submission.request in each]
    for entry in _finals(of_job):
        if entry.answer is not None and entry.answer not in expected:
            yield f"its answer to {submission.request} is {entry.answer}, that of a clean run {' or '.join(expected)}"
            break


def _jobs_of_keys(history: Sequence[Entry]) -> Mapping[str, set[str]]:
    keys = {entry.submission: entry.key for entry in history if entry.what == "submitted" and entry.key is not None}
    jobs: defaultdict[str, set[str]] = defaultdict(set)
    for entry in history:
        if entry.what == "acknowledged" and entry.job is not None and entry.submission in keys:
            jobs[keys[entry.submission]].add(entry.job)
    return jobs


def _unexplained(history: Sequence[Entry], acknowledged: Mapping[str, Entry]) -> Found:
    """Jobs that are there although nobody was told so: as many as there are submissions of unknown fate are fine."""
    acknowledged_submissions = {entry.submission for entry in acknowledged.values()}
    submitted = [entry for entry in history if entry.what == "submitted"]
    unknown = {entry.submission for entry in history if entry.what == "unknown"} - acknowledged_submissions
    # Of one key there is one job, and whoever sent it once more and was told knows it.
    keys = {entry.key for entry in submitted if entry.submission in acknowledged_submissions}
    fates = {entry.key or entry.submission for entry in submitted if entry.submission in unknown and (
        entry.key is None or entry.key not in keys)}  # fmt: skip
    extra = sorted({entry.job for entry in history if entry.what == "listed" and entry.job} - set(acknowledged))
    if len(extra) <= len(fates):
        return {}
    return {job: [f"nobody was told of it; {len(fates)} submissions had an unknown fate"] for job in extra}
