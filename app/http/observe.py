"""The middleware around every HTTP request: request id, security headers, the 500 of a bug, access log, metrics."""

import logging
import re
import secrets
import time
from contextvars import ContextVar
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warpdesk_server.app.kit import errors
from warpdesk_server.app.metrics.exposition import Metrics
from warpdesk_server.workers import logs

log = logging.getLogger("warpdesk.access")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACE = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")  # W3C, Trace Context, 3.2

# Responses are data: a browser may not sniff, frame, store or run them. The one page, /docs, has its own policy.
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


# True for a request that waited for a private job: its duration, in headers, metrics and logs, would be the job's.
after_private: ContextVar[bool] = ContextVar("after_private", default=False)


class Observe:
    """The ASGI middleware that identifies, times, logs and counts each HTTP request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope.setdefault("state", {})
        request_id = identified(scope)
        before = logs.request_id.set(request_id)
        after_before = after_private.set(False)
        metrics: Metrics = scope["app"].state.services.metrics
        metrics.begun()
        status = 500
        started_answering = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, started_answering
            if message["type"] == "http.response.start":
                status, started_answering = message["status"], True
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                if not after_private.get():  # W3C, Server Timing
                    headers["Server-Timing"] = f"app;dur={(time.perf_counter() - started) * 1e3:.1f}"
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            if started_answering:  # the server closes the connection, and writes the trace
                errors.log.error(
                    "%s %s failed, and its response was cut short", scope["method"], quote(scope["path"], "/:")
                )
                raise
            answer = errors.unforeseen(scope["method"], scope["path"], error)
            await answer(scope, receive, send_with_headers)
        finally:
            for share in scope["state"].get("shares", ()):
                share.close()
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "unmatched")  # the template: no ids in labels
            method = _method_label(scope["method"])
            if after_private.get():
                metrics.request(method, route, status, None)
                log.info("%s %s %d after a private job", method, route, status, extra={"private": True})
            else:
                metrics.request(method, route, status, seconds)
                log.info("%s %s %d %.1f ms", method, route, status, seconds * 1e3)
            after_private.reset(after_before)
            logs.request_id.reset(before)


def identified(scope: Scope) -> str:
    """The id of an HTTP request: its X-Request-ID, else the trace id of its `traceparent`, else a new id."""
    incoming: dict[bytes, str] = {}
    for name, value in scope["headers"]:
        if name in (b"x-request-id", b"traceparent"):
            incoming.setdefault(name, value.decode("latin-1"))
    wanted = incoming.get(b"x-request-id", "")
    if _ID.fullmatch(wanted):
        return wanted
    trace = _TRACE.fullmatch(incoming.get(b"traceparent", ""))
    return trace[1] if trace else secrets.token_hex(8)


def _method_label(method: str) -> str:
    """The metric label of an HTTP method: clients may invent methods, so unknown ones share the label `other`."""
    return method if method in errors.METHODS else "other"
