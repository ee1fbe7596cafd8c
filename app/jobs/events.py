"""The routes that stream events as server-sent events, of one job or of all of a key, resumable after the last one."""

import json
import re
import time
from collections.abc import Callable, Iterator

import anyio
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from warpdesk import models
from warpdesk_server.app.access import auth
from warpdesk_server.app.access.auth import Reader
from warpdesk_server.app.http import bodies
from warpdesk_server.app.http.observe import after_private
from warpdesk_server.app.jobs.completions import SAFETY_POLL
from warpdesk_server.app.jobs.records import hides_times, own_job, whole_second
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.schemas import moment
from warpdesk_server.app.services import Services, ServicesDep
from warpdesk_server.workers.queue.jobs import JobQueue
from warpdesk_server.workers.queue.protocol import Event, OwnersEvent
from warpdesk_server.workers.queue.records import JobRecord

router = APIRouter(tags=["jobs"])

EVENT_STREAM = "text/event-stream"
_PAGE = 200  # events of an owner, read at once
_TOGETHER = 0.02  # seconds in which events of an owner are gathered, to be read at once
RETRY = 1000  # milliseconds after which a reader that lost its stream opens it again

_NUMBER = re.compile(r"[0-9]{1,15}")


@router.get(
    "/v1/jobs/{job_id}/events",
    summary="Follow a job as server-sent events",
    response_model=None,
    responses={
        200: {
            "description": "A stream of events (HTML standard, section 9.2): `id` is the event's number, `event` its "
            "type, `data` one line of JSON. While nothing happens, comments are sent at times. It ends with the "
            "job",
            "content": {
                EVENT_STREAM: {
                    "schema": {"type": "string"},
                    "example": "id: 2\nevent: running\ndata: "
                    '{"job":"job_0192f3c1b2a57c3e8d4f5a6b7c8d9e0f","number":2,"event":"running",'
                    '"at":"2026-01-05T09:30:00.250000Z","attempt":1,"progress":null,"reason":null}\n\n',
                }
            },
        },
        204: {"description": "The job is done, and `Last-Event-ID` is its last event: no more will come"},
        **errors.documented(
            "unauthorized", "missing-scope", "foreign-host", "queue-unavailable", "bad-request", "unknown-job",
            "not-acceptable", "share-used-up", "busy",
        ),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "Number of the last event that was read: the stream begins after it",
                "schema": {"type": "string", "pattern": f"^{_NUMBER.pattern}$"},
            }
        ]
    },
)  # fmt: skip
async def follow_job(job_id: str, request: Request, caller: Reader, services: ServicesDep) -> Response:
    """The job's past events, or those after `Last-Event-ID`, then each new event as it happens."""
    bodies.negotiate(request, EVENT_STREAM)
    request.state.shares.append(services.streams.take(caller.id))  # until the stream ends
    record = await own_job(services, caller, job_id)
    if record.erased:
        raise Refusal("unknown-job", f"The events of {job_id} were erased with it")
    last = _last_event(request)
    events = await services.queue(lambda jobs: jobs.events(job_id, max(0, last - 1)))
    if last and (not events or last > events[-1].number):
        raise Refusal("bad-request", f"The job has had no event {last}")
    if last and events[-1].number == last and events[-1].final:
        return Response(status_code=204)
    return _JobStream(services, record, last, auth.still(request))


@router.get(
    "/v1/events",
    summary="Follow all your jobs as server-sent events",
    response_model=None,
    responses={
        200: {
            "description": "A stream of what happens to any job of the key from now on, or after `Last-Event-ID`. `id` "
            "is a number of this stream, `event` the type, `data` a JobEvent with its `operation`. An event `gap` says "
            "that some before it are no longer kept: the last 2,000 or so are, for a day after the key last followed",
            "content": {
                EVENT_STREAM: {
                    "schema": {"type": "string"},
                    "example": "id: 1795413138841\nevent: running\ndata: "
                    '{"job":"job_0192f3c1b2a57c3e8d4f5a6b7c8d9e0f","number":2,"event":"running",'
                    '"at":"2026-01-05T09:30:00.250000Z","attempt":1,"progress":null,"reason":null,'
                    '"operation":"rsi"}\n\n',
                }
            },
        },
        **errors.documented(
            "unauthorized", "missing-scope", "foreign-host", "queue-unavailable", "bad-request", "not-acceptable",
            "share-used-up", "busy",
        ),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "`id` of the last event that was read: the stream begins after it",
                "schema": {"type": "string", "pattern": f"^{_NUMBER.pattern}$"},
            }
        ]
    },
)  # fmt: skip
async def follow_jobs(request: Request, caller: Reader, services: ServicesDep) -> Response:
    """Every transition of every job of the key. Open the stream first and list the jobs then: so none is missed."""
    bodies.negotiate(request, EVENT_STREAM)
    request.state.shares.append(services.streams.take(caller.id))  # until the stream ends
    last = _last_event(request) or await services.queue(lambda jobs: jobs.begin_to_follow(caller.id))
    after_private.set(True)  # its duration, and when it sends, tells of private jobs
    return _OwnersStream(services, caller.id, last, auth.still(request))


def _last_event(request: Request) -> int:
    """The number of the event in a request's `Last-Event-ID`; 0 if missing. A browser sends it empty if it saw
    no id."""
    header = request.headers.get("last-event-id", "")
    if not header:
        return 0
    if not _NUMBER.fullmatch(header):
        raise Refusal("bad-request", f"Last-Event-ID is the number of an event, not {header[:40]!r}")
    return int(header)


class _Stream(Response):
    """A streaming response with server-sent events, until its reader is gone or `_follow` returns."""

    media_type = EVENT_STREAM

    def __init__(self, services: Services, let_in: Callable[[], bool]) -> None:
        # Proxies such as nginx must not buffer the stream, and nobody may cache it.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._services = services
        self._let_in = let_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        async with anyio.create_task_group() as tasks:

            async def until_gone() -> None:
                await bodies.until_gone(receive)
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_gone)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send(send, f"retry: {RETRY}\n\n")
            await self._follow(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            tasks.cancel_scope.cancel()

    async def _follow(self, send: Send) -> None:
        raise NotImplementedError


class _JobStream(_Stream):
    """The streaming response with one job's events (server-sent events), for one reader.

    For a slow reader only a bounded amount is buffered, in `jobs.completions.Feed` and in the connection. It uses no
    thread, except to read missed events from Redis.
    """

    def __init__(self, services: Services, record: JobRecord, last: int, let_in: Callable[[], bool]) -> None:
        super().__init__(services, let_in)
        self._record = record
        self._last = last

    async def _follow(self, send: Send) -> None:
        services, job_id, deadline = self._services, self._record.request.id, self._record.request.deadline
        private = hides_times(services, self._record.request.operation)
        after_private.set(private or self._record.request.private)
        with services.completions.follow(job_id, self._last, self._let_in) as feed:
            while not (services.completions.released or feed.over):
                events = await services.completions.news(feed, services.settings.event_comment_seconds)
                if not self._let_in():
                    return
                if events:
                    await _send(send, "".join(_frame(event, private) for event in events))
                    if events[-1].final:
                        return
                elif not (services.completions.released or feed.over):
                    await _send(send, ":\n\n")
                    if deadline is not None and time.time() > deadline:
                        await self._expire()

    async def _expire(self) -> None:
        """Read the job whose events are streamed, so that it expires if its deadline has passed. Needed while no
        worker is alive to do that."""
        try:
            await self._services.queue(lambda jobs: jobs.get(self._record.request.id))
        except Refusal:
            return


class _OwnersStream(_Stream):
    """The streaming response with the events of all jobs of an owner, for one reader. Each is read from Redis, so a
    slow reader holds nothing here."""

    def __init__(self, services: Services, owner: str, last: int, let_in: Callable[[], bool]) -> None:
        super().__init__(services, let_in)
        self._owner = owner
        self._last = last

    async def _follow(self, send: Send) -> None:
        completions = self._services.completions
        comment_at = 0.0  # the first tells a reader that the stream has begun
        with completions.follow_owner(self._owner, self._let_in) as feed:
            while not completions.released and self._let_in():
                feed.woken.clear()  # before the read: what comes after it wakes again
                try:
                    events, last = await self._services.queue(self._read)
                except Refusal:
                    events, last = [], self._last
                if events or last != self._last:
                    await _send(send, "".join(self._frames(events, last)))
                    self._last = last
                    continue
                if time.monotonic() >= comment_at:
                    await _send(send, ":\n\n")
                    comment_at = time.monotonic() + self._services.settings.event_comment_seconds
                with anyio.move_on_after(min(SAFETY_POLL, comment_at - time.monotonic())):
                    await feed.woken.wait()
                    await anyio.sleep(_TOGETHER)

    def _read(self, jobs: JobQueue) -> tuple[list[OwnersEvent], int]:
        """The next events, and the number of the last one."""
        current = jobs.begin_to_follow(self._owner)
        events = jobs.events_of(self._owner, self._last, _PAGE) if current != self._last else []
        return events, events[-1].number if events else current

    def _frames(self, events: list[OwnersEvent], last: int) -> Iterator[str]:
        before = events[0].number - 1 if events else last
        if before != self._last:
            lost = {"event": "gap", "detail": "Events were lost, or are no longer kept: list the jobs again"}
            yield f"id: {before}\nevent: gap\ndata: {json.dumps(lost)}\n\n"
        for each in events:
            if each.event is not None:
                private = each.private or hides_times(self._services, each.operation)
                yield _frame(each.event, private, each.number, each.operation)


def _frame(event: Event, private: bool, number: int | None = None, operation: str | None = None) -> str:
    at = moment(whole_second(event.at) if private else event.at)
    assert at is not None  # noqa: S101
    document = models.JobEvent(
        job=event.job,
        number=event.number,
        event=event.event,
        at=at,
        attempt=event.attempt,
        progress=event.progress,
        reason=event.reason,
        step=event.step,
        values=event.values,
        operation=operation,
    )
    return f"id: {number or event.number}\nevent: {event.event}\ndata: {document.model_dump_json()}\n\n"


async def _send(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
