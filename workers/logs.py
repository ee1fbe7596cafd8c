"""The log format of the service's processes: one line of text or JSON for each event, without secrets.

A line about a job has its id, attempt, operation and the id of the request that made it. The time of a line about a
private job is a whole second, since how long a sampler ran reveals something of its noise. Each line and each traceback
goes through `scrub` before it is written, those of libraries too.
"""

import json
import logging
import re
import socket
import sys
import threading
import traceback
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from warpdesk_server.workers.queue.protocol import JobRequest

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

# The id of the HTTP request that the API is answering.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

# The fields that a log record may get by `extra`, beside its message.
FIELDS = ("request_id", "job", "attempt", "operation", "worker")

_TOO_LONG = 8192  # characters of a line's text

# Without \b and \w* before a word: a line in which there is none is passed over in microseconds.
_SECRETS = (
    # API keys keep the part that is no secret: it says whose they are. Join tokens of rounds have none.
    (re.compile(r"wd_([0-9a-f]{12})_[A-Za-z0-9_-]+"), r"wd_\1_***"),
    (re.compile(r"wdj_[A-Za-z0-9_-]+"), "wdj_***"),
    (
        re.compile(r"""(?i)(authorization|x-api-key)(\\?["']?\s*[:=,]\s*(?:b?\\?["'])?)[^"'\r\n,}\])]+"""),
        r"\1\2***",
    ),
    (re.compile(r"(?i)(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 ***"),
    # To the last "@" before a space: a password may have one in it, and quotes. Bounded, else a line of nothing but
    # colons takes the square of its length.
    (re.compile(r"(://)[^\s/:]{0,256}:[^\s]{0,512}@"), r"\1***@"),
    (
        re.compile(r"""(?i)(password|passwd|secret|api_key|token)(\\?['"]?\s*[=:]\s*\\?['"]?)[^\s'"&,;)}\\]+"""),
        r"\1\2***",
    ),
)


def scrub(text: str) -> str:
    """Text for a log line, with its secrets replaced by stars.

    Secrets are API keys, join tokens, values of authentication headers, and passwords in URLs and connection strings.
    """
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


def about(request: JobRequest, attempt: int | None = None) -> dict[str, Any]:
    """The `extra` fields of a log line about a job."""
    fields = {"request_id": request.request_id, "job": request.id, "attempt": attempt, "operation": request.operation}
    fields |= {"private": request.private or None}
    return {name: value for name, value in fields.items() if value is not None}


def worker_of(pid: int) -> str:
    """The `worker` field in the log lines of a worker's two processes; the worker's name begins with it."""
    return f"{socket.gethostname()}-{pid}"


def configure(form: LogFormat, level: LogLevel = "warning", worker: str | None = None) -> None:
    """Set up this process' loggers, RQ's and uvicorn's too, to write to stderr, and log uncaught exceptions there.

    `level` is the level of our own loggers; other loggers write warnings. `worker` is the `worker` field of JSON lines.
    """
    handler = _Stderr()
    handler.setFormatter(_Json(worker) if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("warpdesk").setLevel(level.upper())
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda _kind, error, _trace: _uncaught(error)
    threading.excepthook = lambda ended: _uncaught(ended.exc_value)


def _uncaught(error: BaseException | None) -> None:
    if isinstance(error, Exception):  # else it was asked to end
        logging.getLogger("warpdesk").critical("nobody caught %s", type(error).__name__, exc_info=error)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "private", False):
            record.created, record.msecs = float(int(record.created)), 0.0
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Report a log line that cannot be formatted, without its arguments: Python would write them as they are."""
        error = sys.exc_info()[1]
        with suppress(OSError, ValueError):
            self.stream.write(
                f"a line of {record.name} at {record.filename}:{record.lineno} is lost: {type(error).__name__}\n"
            )


class _Text(logging.Formatter):
    """The log formatter for people: one line of text for each event."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        request_id = _request_id(record)
        text = super().format(record)
        if request_id is not None:
            head, line, rest = text.partition("\n")
            text = f"{head} id={request_id}{line}{rest}"
        return scrub(text)


class _Json(logging.Formatter):
    """The log formatter for log collectors: one JSON object a line. `time` is RFC 3339, in UTC."""

    def __init__(self, worker: str | None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": scrub(record.getMessage())[:_TOO_LONG],
            "worker": self._worker,
        }
        for name in FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                fields[name] = scrub(value) if isinstance(value, str) else value
        if (request_id := _request_id(record)) is not None:
            fields["request_id"] = scrub(request_id)
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1]))
            fields["exception"] = scrub(trace)[-_TOO_LONG:]  # its end is what was raised
        return json.dumps({name: value for name, value in fields.items() if value is not None})


def _request_id(record: logging.LogRecord) -> str | None:
    noted: str | None = getattr(record, "request_id", None)
    return noted or request_id.get()
