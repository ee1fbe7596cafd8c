"""Clients of a service under chaos: they submit, cancel, wait, read and read again, and write down what they saw."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import httpx

from tests.chaos.history import History
from tests.chaos.workload import Request, Submission, digest

T = TypeVar("T")

SUBMITTERS, READERS = 4, 3
# All that is told of a final job beside its answer.
RECORD = ("attempt", "started_at", "ended_at", "result_expires_at", "erased", "error")
FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
# Who gets these knows that there is no job; of any other failure nobody knows.
REFUSALS = frozenset({
    "rate-limited", "quota-reached", "queue-full", "queue-memory", "deadline-unreachable", "storage-full",
})  # fmt: skip

# Who gets these knows nothing.
UNKNOWN = frozenset({"queue-unavailable", "not-replicated"})


class Look:
    """One onlooker: every answer is written down with the time its question was asked."""

    def __init__(self, url: str, history: History, by: str, errors: list[str], token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=70)
        self._history = history
        self._by = by
        self._errors = errors

    def close(self) -> None:
        self._http.close()

    def submit(self, one: Submission, patience: Callable[[], bool]) -> str | None:
        """Insist until the service took it, where a key makes that safe, or refused it for good. The job's id."""
        request, headers = one.request, {} if one.key is None else {"Idempotency-Key": one.key}
        if one.wait:
            headers["Prefer"] = "wait=2"
        self._history.add(
            "submitted", self._by, submission=one.number, request=request.name, key=one.key, ends=one.ends
        )
        while patience():
            began = time.monotonic()
            try:
                answer = self._http.post("/v1/jobs", json=one.body(), headers=headers)
            except httpx.TransportError as error:
                self._history.add("unknown", self._by, submission=one.number, detail=repr(error)[:200])
            else:
                if answer.status_code in (200, 202):
                    document = answer.json()
                    self._history.add(
                        "acknowledged", self._by, submission=one.number, job=document["id"], state=document["status"]
                    )
                    self._note_reading(document, began)
                    return str(document["id"])
                code = _code(answer)
                if code in REFUSALS:
                    self._history.add("refused", self._by, submission=one.number, detail=code)
                    time.sleep(min(1.0, float(answer.headers.get("Retry-After", 1))))
                    continue
                detail = f"{answer.status_code} {code}"
                self._history.add("unknown", self._by, submission=one.number, detail=detail)
                if code not in UNKNOWN:
                    self._errors.append(f"submission {one.number} was answered {detail}: {answer.text[:200]}")
                    return None
            if one.key is None:
                return None
            time.sleep(0.2)
        return None

    def cancel(self, job: str) -> None:
        self._history.add("canceling", self._by, job=job)
        self._job(job, "POST", f"/v1/jobs/{job}/cancel")

    def job(self, job: str, wait: int = 0) -> str | None:
        """Its state; None where nobody said."""
        document = self._job(job, "GET", f"/v1/jobs/{job}", {"Prefer": f"wait={wait}"} if wait else {})
        return None if document is None else str(document["status"])

    def result(self, job: str) -> bool:
        """Read the answer of a job that succeeded; whether there was one."""
        began = time.monotonic()
        answer = self._get(f"/v1/jobs/{job}/result")
        if answer is None:
            return False
        if answer.status_code == 200:
            document = answer.json()
            self._history.add(
                "seen", self._by, began=began, job=job, state="succeeded", final=True,
                provenance=digest(document["provenance"]), answer=digest(document["outputs"]),
            )  # fmt: skip
            return True
        if _code(answer) not in UNKNOWN:
            self._history.add("gone", self._by, job=job, detail=f"{answer.status_code} {_code(answer)}")
        return False

    def events(self, job: str) -> bool:
        """Read all events of a job that has ended; whether there was an answer."""
        answer = self._get(f"/v1/jobs/{job}/events")
        if answer is None or answer.status_code != 200:
            return False
        names = tuple(line[7:] for line in answer.text.splitlines() if line.startswith("event: "))
        self._history.add("told", self._by, job=job, events=names)
        return True

    def listed(self, since: str) -> bool:
        """Read the list of jobs back to one of them."""
        page: str | None = "/v1/jobs?limit=200"
        while page is not None:
            answer = self._get(page)
            if answer is None or answer.status_code != 200:
                return False
            document = answer.json()
            fresh = [job for job in document["jobs"] if job["id"] >= since]  # ids sort by time
            for job in fresh:
                self._history.add("listed", self._by, job=job["id"], state=job["status"])
            page = document["next"] if fresh else None
        return True

    def answer(self, one: Submission) -> str:
        """The digest of the answer to a submission while nothing is done to the service. A busy machine's Redis may not
        answer in the second that the API gives it."""
        job = self.submit(one, lambda: True)
        assert job is not None, one.request.name
        document = _insist(lambda: self._job(job, "GET", f"/v1/jobs/{job}", {"Prefer": "wait=55"}))
        assert document is not None, one.request.name
        assert document["status"] == "succeeded", (one.request.name, document["error"])
        return digest(document["result"]["outputs"])

    def _job(self, job: str, method: str, path: str, headers: Mapping[str, str] | None = None) -> Any:
        began = time.monotonic()
        try:
            answer = self._http.request(method, path, headers=headers)
        except httpx.TransportError:
            return None
        if answer.status_code in (200, 202):
            document = answer.json()
            self._note_reading(document, began)
            return document
        if answer.status_code < 500:
            self._history.add("gone", self._by, job=job, detail=f"{answer.status_code} {_code(answer)}")
        return None

    def _note_reading(self, document: Mapping[str, Any], began: float) -> None:
        final = document["status"] in FINAL
        error, result, provenance = document["error"], document.get("result"), document["provenance"]
        self._history.add(
            "seen", self._by, began=began, job=document["id"], state=document["status"], final=final,
            attempt=document["attempt"],
            code=None if error is None else error["code"],
            record=digest({name: document[name] for name in RECORD}) if final else None,
            provenance=digest(provenance) if final and provenance is not None else None,
            answer=None if result is None else digest(result["outputs"]),
        )  # fmt: skip

    def _get(self, path: str) -> httpx.Response | None:
        try:
            return self._http.get(path)
        except httpx.TransportError:
            return None


class Load:
    """Clients in threads. They send at least so many submissions and go on until it is `enough`, with at most
    `outstanding` jobs not yet seen to end."""

    def __init__(
        self,
        url: str,
        history: History,
        submissions: Iterator[Submission],
        jobs: int,
        outstanding: int = 150,
        enough: Callable[[], bool] = lambda: True,
        token: str = "",
    ) -> None:
        self.url = url
        self._token = token
        self.history = history
        self.errors: list[str] = []
        self.jobs: set[str] = set()
        self._submissions = submissions
        self._wanted = jobs
        self.sent = 0
        self._enough = enough
        self._turn = threading.Lock()
        self._room = threading.Semaphore(outstanding)
        # Not a SimpleQueue: that of Python 3.11 can forget its time-out where several readers wait.
        self._open: queue.Queue[str] = queue.Queue()
        self._settled: list[str] = []
        self._left = 0  # acknowledged and not settled
        self._stopped = threading.Event()
        self._sending = SUBMITTERS
        self._threads = [
            *(threading.Thread(target=self._guarded, args=(self._submit, f"client {n}")) for n in range(SUBMITTERS)),
            *(threading.Thread(target=self._guarded, args=(self._read, f"reader {n}")) for n in range(READERS)),
            threading.Thread(target=self._guarded, args=(self._read_again, "onlooker")),
        ]

    @property
    def settled(self) -> int:
        """Jobs that somebody saw the end of."""
        return len(self._settled)

    @property
    def done(self) -> bool:
        """Whether all is submitted and was seen to end."""
        return not self._sending and not self._left

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def audit(self) -> None:
        """Read everything once more, as somebody who comes when it is all over. Call it when the load has ended."""
        with ThreadPoolExecutor(4) as threads:
            for _ in threads.map(self._audit, [sorted(self.jobs)[n::4] for n in range(4)]):
                pass
        self._guarded(self._audit_list, "auditor")

    def _audit(self, jobs: list[str]) -> None:
        def read(look: Look) -> None:
            for job in jobs:
                if _insist(lambda job=job: look.job(job)) == "succeeded":
                    look.result(job)
                if not _insist(lambda job=job: look.events(job)):
                    self.errors.append(f"{job}: its events were not told")

        self._guarded(read, "auditor")

    def _audit_list(self, look: Look) -> None:
        if self.jobs and not _insist(lambda: look.listed(min(self.jobs))):
            self.errors.append("the list of jobs was not told")

    def _guarded(self, work: Callable[[Look], object], by: str) -> None:
        look = Look(self.url, self.history, by, self.errors, self._token)
        try:
            work(look)
        except BaseException as error:  # noqa: BLE001 (a client that fails fails the run)
            self.errors.append(f"{by}: {error!r}")
        finally:
            look.close()

    def _submit(self, look: Look) -> None:
        try:
            while not self._stopped.is_set():
                if not self._room.acquire(timeout=0.1):
                    continue
                with self._turn:
                    if self.sent >= self._wanted and self._enough():
                        return
                    self.sent += 1
                    one = next(self._submissions)
                job = look.submit(one, lambda: not self._stopped.is_set())
                with self._turn:
                    fresh = job is not None and job not in self.jobs
                    if fresh:
                        self._left += 1
                        self.jobs.add(str(job))
                if job is not None and one.cancel:
                    look.cancel(job)
                if fresh:
                    self._open.put(str(job))
                else:
                    self._room.release()
        finally:
            with self._turn:
                self._sending -= 1

    def _read(self, look: Look) -> None:
        while not self._stopped.is_set():
            try:
                job = self._open.get(timeout=0.1)
            except queue.Empty:
                continue
            state = look.job(job, wait=2)
            if state is None:
                time.sleep(0.05)
            if state not in FINAL or (state == "succeeded" and not look.result(job)):
                self._open.put(job)
                continue
            with self._turn:
                self._settled.append(job)
                self._left -= 1
            self._room.release()

    def _read_again(self, look: Look) -> None:
        chance = random.Random(3)
        while not self._stopped.wait(0.02):
            if self._settled:
                job = chance.choice(self._settled)
                if look.job(job) == "succeeded":
                    look.result(job)
                look.events(job)


def clean_run(
    url: str, history: History, requests: Sequence[Request], token: str = "", turn: int = 0
) -> dict[str, str]:
    """The digest of each request's answer, by one worker each, while nothing is done to the service.

    `turn` tells apart the clean runs of one history.
    """
    look = Look(url, history, f"clean run {turn}", [], token)
    first = -1 - turn * len(requests)
    submissions = [Submission(first - at, each.alone, key=f"clean run {turn} {at}") for at, each in enumerate(requests)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(look.answer, submissions))
    look.close()
    return {request.name: answer for request, answer in zip(requests, answers, strict=True)}


def _insist(ask: Callable[[], T]) -> T:
    """Ask until there is an answer, as clients do where Redis was slow for a second; give up after ten questions."""
    for _ in range(9):
        if answer := ask():
            return answer
        time.sleep(0.5)
    return ask()


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError):
        return "no problem document"
