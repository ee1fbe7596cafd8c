"""What `warpdesk submit` shows on a terminal while a job waits and runs, and what Ctrl-C does."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.computations import take, work
from tests.app.conftest import Live, live
from tests.conftest import ROOT
from tests.waiting import wait_until
from warpdesk import Client, ProgressBar
from warpdesk.models import JobEvent
from warpdesk.progress import _shortened, line


@pytest.fixture
def api(redis_url: str, tmp_path: Path) -> Iterator[Live]:
    with live(tmp_path / "home", redis_url) as running:
        yield running


@dataclass
class Terminal:
    """What a program wrote to a terminal so far."""

    master: int
    text: str = ""
    process: "subprocess.Popen[str] | None" = None

    def shows(self, pattern: str) -> None:
        """Read until it is there."""
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            self._read(0.1)

    def _read(self, patience: float) -> bool:
        try:
            if not select.select([self.master], [], [], patience)[0]:
                return True
            self.text += os.read(self.master, 4096).decode()
        except OSError:  # nobody has the terminal open any more
            return False
        return True

    @property
    def left(self) -> str:
        """What stands there when the program has ended, each thing written over what was there before."""
        while self._read(10.0):
            pass
        shown = ""
        for piece in re.split(r"\r(?!\n)", self.text):
            shown = piece + shown[len(piece) :]
        return shown.strip()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Run `warpdesk` with a terminal for its standard error."""
    ends: list[int] = []
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> Terminal:
        master, slave = pty.openpty()
        ends.append(master)
        process = subprocess.Popen(
            # As in a terminal: what a shell runs in the background does not hear of Ctrl-C, nor does what that starts.
            ["env", "--default-signal=INT", sys.executable, "-m", "warpdesk", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            text=True,
        )
        os.close(slave)
        processes.append(process)
        return Terminal(master, process=process)

    yield run
    for process in processes:
        process.kill()
        process.communicate()
    for end in ends:
        os.close(end)


@pytest.fixture
def submit(api: Live, tmp_path: Path) -> tuple[str, ...]:
    np.save(tmp_path / "values.npy", np.array([1.0, 2.0]))
    return ("submit", "scale", "-p", "factor=2", "-i", f"values={tmp_path}/values.npy", "--url", api.url)


def newest(api: Live) -> str:
    return api.queue.jobs("local", 1)[0][0].request.id


def test_a_terminal_shows_the_place_and_the_progress_and_nothing_is_left_of_it(
    api: Live, submit: tuple[str, ...], terminal: Callable[..., Terminal]
) -> None:
    before = api.submit(
        operation="scale", params={"factor": 1.0}, inputs={"values": {"data": [1.0]}}, priority="realtime"
    )
    shown = terminal(*submit)
    shown.shows(r"queued, 1 of yours before it, \d+ s")
    api.queue.cancel(before)
    shown.shows(r"queued, next of yours, \d+ s")
    job_id = newest(api)
    held = take(api.queue, job_id)
    shown.shows(r"running, \d+ s")
    api.queue.progress(job_id, held.attempt, 0.5)
    shown.shows(r"\[#{15}-{15}\]  50 %, \d+ s")
    api.queue.cancel(job_id)
    shown.shows(r"The job is canceled|job-canceled")

    assert shown.process is not None
    assert shown.process.wait(30) == 1
    assert shown.process.stdout is not None
    assert shown.process.stdout.read() == ""
    assert shown.left.startswith("warpdesk: ")


def test_the_answer_follows_on_standard_output(
    api: Live, submit: tuple[str, ...], terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(*submit)
    shown.shows("queued")
    work(api.queue, api.store, newest(api))

    assert shown.process is not None
    out, _ = shown.process.communicate(timeout=30)
    assert shown.process.returncode == 0
    assert out.splitlines()[1].split() == ["total", "6"]
    assert shown.left == ""


def test_what_is_no_terminal_gets_no_progress(api: Live, submit: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "warpdesk", *submit], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: api.queue.jobs("local", 1)[0])
    work(api.queue, api.store, newest(api))
    out, errors = process.communicate(timeout=60)

    assert (process.returncode, errors) == (0, "")
    assert "total" in out


@pytest.mark.parametrize("state", ["queued", "running"])
def test_ctrl_c_cancels_the_job_and_says_so(
    api: Live, submit: tuple[str, ...], terminal: Callable[..., Terminal], state: str
) -> None:
    shown = terminal(*submit)
    shown.shows("queued")
    job_id = newest(api)
    if state == "running":
        take(api.queue, job_id)
        shown.shows("running")
    assert shown.process is not None
    shown.process.send_signal(signal.SIGINT)
    shown.shows(f"warpdesk: the job {job_id} is canceled")

    assert shown.process.wait(30) == 130
    record = api.queue.get(job_id)
    assert record is not None
    assert record.state.value == "canceled"


def test_a_job_that_is_not_done_in_time_goes_on_and_is_named(
    api: Live, submit: tuple[str, ...], terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(*submit, "--timeout", "0.5")
    shown.shows("is still queued")

    assert shown.process is not None
    assert shown.process.wait(30) == 1
    assert f"warpdesk: {newest(api)} is still queued" in shown.left
    record = api.queue.get(newest(api))
    assert record is not None
    assert record.state.value == "queued"


def event(name: Any, **fields: Any) -> JobEvent:
    values = {"attempt": 0, "progress": None, "reason": None, **fields}
    return JobEvent(job="job_" + "0" * 32, number=1, event=name, at=datetime.now(UTC), **values)


@pytest.mark.parametrize(
    ("job_event", "before", "expected"),
    [
        (event("queued"), None, "queued, 4 s"),
        (event("queued"), 0, "queued, next of yours, 4 s"),
        (event("queued"), 12, "queued, 12 of yours before it, 4 s"),
        (
            event("queued", attempt=1, reason="its worker\x1b[2J died"),
            0,
            "queued again (its worker[2J died), next of yours, 4 s",
        ),
        (event("running", attempt=1), None, "running, 4 s"),
        (event("running", attempt=3), None, "running, attempt 3, 4 s"),
        (event("progress", attempt=1, progress=0.0), None, f"[{'-' * 30}]   0 %, 4 s"),
        (event("progress", attempt=2, progress=1.0), None, f"[{'#' * 30}] 100 %, attempt 2, 4 s"),
        (event("succeeded", attempt=1), None, "succeeded, 4 s"),
    ],
)
def test_a_line_says_what_is_known(job_event: JobEvent, before: int | None, expected: str) -> None:
    assert line(job_event, before, 4.4) == expected


def test_a_bar_draws_nothing_where_there_is_no_terminal(api: Live) -> None:
    out = io.StringIO()
    with Client(api.url) as client:
        job = client.submit("scale", factor=1.0, values=[1.0])
        client.cancel(job)
        with ProgressBar(out) as bar:
            assert client.wait(job, progress=bar).status == "canceled"

    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("most", "shown"),
    [
        (100, "[##] 8 %, step 5, price 5.78105, standard_error 0.00349, 7 s"),
        (56, "[##] 8 %, step 5, price 5.78105, standard_error 0.00349"),
        (53, "[##] 8 %, step 5, price 5.78105"),
        (31, "[##] 8 %, step 5, price 5.78105"),
        (3, "[##"),
    ],
)
def test_a_narrow_terminal_shows_no_half_number(most: int, shown: str) -> None:
    assert _shortened("[##] 8 %, step 5, price 5.78105, standard_error 0.00349, 7 s", most) == shown
