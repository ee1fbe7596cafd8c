"""The audit log of admins' acts: who, what, to what, when, for which request. The outcome follows in a line of its own.

The entry is written before the act, in a file of JSON lines that is only ever appended to. If it cannot be written, the
act is refused: a full disk does that. An entry without an outcome was cut off, by a crash say, and what became of it is
to be looked up. No line has a payload. The file is opened for each line, so that it can be renamed at any time: the
next line begins a new one.
"""

import fcntl
import json
import logging
import os
import pwd
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from warpdesk.durable import force
from warpdesk_server.app.access.auth import Needs
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.workers import logs

log = logging.getLogger("warpdesk.audit")

_READS = ("GET", "HEAD")
_PAGE_BYTES = 1 << 20  # of the log, read at once


class AuditUnavailable(Exception):
    """Raised if the audit log cannot be written; the message says why. The act was not done."""


@dataclass
class AuditEntry:
    """An entry of the audit log: an act of an admin. `target` may be set later, to the id of what the act created."""

    who: Mapping[str, str | int]
    action: str
    target: str | None
    id: str = field(default_factory=lambda: secrets.token_hex(8))


class Audit:
    """The audit log at one path. Any number of processes may write to it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, entry: AuditEntry) -> None:
        """Write to the audit log that an admin's act is about to happen. Raises AuditUnavailable."""
        self._write(entry, "begun")

    def end(self, entry: AuditEntry, outcome: str) -> None:
        """Write the outcome of an admin's act to the audit log: "succeeded", or the code of a refusal.

        The act has happened already. If this cannot be written, the entry stays without an outcome, and the service's
        log has it.
        """
        try:
            self._write(entry, outcome)
        except AuditUnavailable as error:
            log.error("%s %s of %s: %s, but %s", entry.id, entry.action, entry.target, outcome, error)

    @contextmanager
    def record(self, entry: AuditEntry) -> Iterator[AuditEntry]:
        """Write an admin's act in the block to the audit log. Raises AuditUnavailable before the act."""
        self.begin(entry)
        try:
            yield entry
        except BaseException as error:
            self.end(entry, f"failed: {type(error).__name__}")
            raise
        self.end(entry, "succeeded")

    def read(self, entry: AuditEntry) -> None:
        """Write one audit line: an admin reads data of other owners. Raises AuditUnavailable."""
        self._write(entry, "read")

    def lines(self, after: int | None, limit: int) -> tuple[list[bytes], int]:
        """At most `limit` lines of the audit log after that many bytes of it, or its last ones, and how many bytes
        were read.

        A log that has fewer bytes was renamed, and is read from the beginning of the new one.
        """
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = max(0, size - _PAGE_BYTES) if after is None else after if after <= size else 0
                file.seek(begin)
                text = file.read(_PAGE_BYTES)
        except FileNotFoundError:
            return [], 0
        whole = text[: text.rfind(b"\n") + 1]  # a line that is being written has no end yet
        lines = whole.splitlines(keepends=True)
        if after is None:
            lines = lines[1 if begin else 0 :][-limit:]
            return lines, begin + len(whole)
        return lines[:limit], begin + sum(map(len, lines[:limit]))

    def _write(self, entry: AuditEntry, outcome: str) -> None:
        fields = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "entry": entry.id,
            "who": entry.who,
            "action": entry.action,
            "target": entry.target,
            "outcome": outcome,
            "request_id": logs.request_id.get(),
        }
        line = json.dumps(fields, separators=(",", ":"))
        try:
            self._append(line.encode() + b"\n")
        except OSError as error:
            raise AuditUnavailable(f"the audit log {self._path} cannot be written: {error.strerror}") from error
        log.info("%s", line)

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a disk that was full cut the last one off
                line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                raise OSError(0, "only a part of a line was taken")
            os.fsync(descriptor)
            if not size:  # a new file's name has to be on the disk as well
                force(self._path.parent)
        finally:
            os.close(descriptor)


def user() -> dict[str, str | int]:
    """The operating-system user who runs an admin's command, for its entry in the audit log."""
    uid = os.getuid()
    try:
        return {"user": pwd.getpwuid(uid).pw_name, "uid": uid}
    except KeyError:  # as in a container
        return {"uid": uid}


class Audited(APIRoute):
    """The route class of admin routes: it ends a request's audit entry before the response is sent."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                answer = await inner(request)
            except Refusal as refusal:
                await _end(request, refusal.code)
                raise
            except RequestValidationError:
                await _end(request, "invalid-request")
                raise
            except BaseException as error:
                await _end(request, f"failed: {type(error).__name__}")
                raise
            await _end(request, "succeeded")
            return answer

        return handle


async def begin(request: Request, caller: Key, target: str | None = None) -> None:
    """Write the audit entry of an admin's request, before the request acts on other owners' data.

    `target` says what it is about, where the path does not.
    """
    entry = AuditEntry(
        {"key": caller.id, "name": caller.name},
        f"{request.method} {request.scope['route'].path}",
        target or "/".join(request.path_params.values()) or None,
    )
    audit: Audit = request.app.state.audit
    reads = request.method in _READS
    try:
        await anyio.to_thread.run_sync(audit.read if reads else audit.begin, entry)
    except AuditUnavailable as error:
        log.error("%s of key %s was refused: %s", entry.action, caller.id, error)
        sentence = "An admin's act is first written to the audit log, which cannot be written now: nothing was done"
        raise Refusal("audit-unavailable", sentence, headers={"Retry-After": "60"}) from None
    if not reads:
        request.state.audit_entry = entry


def about(request: Request, target: str) -> None:
    """Set the target of an admin request's audit entry to the id of what it created."""
    entry: AuditEntry = request.state.audit_entry
    entry.target = target


async def _end(request: Request, outcome: str) -> None:
    entry: AuditEntry | None = getattr(request.state, "audit_entry", None)
    if entry is not None:
        audit: Audit = request.app.state.audit
        with anyio.CancelScope(shield=True):  # its caller may have gone
            await anyio.to_thread.run_sync(audit.end, entry, outcome)


_administrator = Needs("admin")


async def admin(request: Request) -> Key:
    """A FastAPI dependency: the caller's key with the scope admin, after its request is in the audit log."""
    caller = await _administrator(request)
    await begin(request, caller)
    return caller


Admin = Annotated[Key, Depends(admin)]
