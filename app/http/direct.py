"""A route class, and the middleware that calls such routes past most of FastAPI's work for each HTTP request."""

import re
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from warpdesk_server.app.http import queries

Handler = Callable[[Request], Awaitable[Response]]


class DirectRoute(APIRoute):
    """A route that calls its function with the HTTP request, the path parameters as strings, and the dependencies'
    values.

    FastAPI resolves a function's dependencies again for each request, which is half the cost of a refusal. A function
    that needs anything else, such as a query parameter, is still called by FastAPI.
    """

    @property
    def direct(self) -> Handler | None:
        """The function of an HTTP request that is called for the route; None if FastAPI has to call it."""
        declared = self.dependant
        texts = [field.name for field in declared.path_params]
        needs = [(need.name, need.call) for need in declared.dependencies if need.name and need.call]
        if (
            not iscoroutinefunction(self.endpoint)
            or _takes_more(declared)
            or len(needs) < len(declared.dependencies)
            or any(field.field_info.annotation is not str for field in declared.path_params)
            or any(need.path_params or need.dependencies or _takes_more(need) for need in declared.dependencies)
        ):
            return None

        async def handle(request: Request) -> Response:
            await queries.declared_alone(request)
            given: dict[str, Any] = {name: request.path_params[name] for name in texts}
            if declared.request_param_name is not None:
                given[declared.request_param_name] = request
            for name, need in needs:
                given[name] = await need(request)
            answer: Response = await self.endpoint(**given)
            return answer

        return handle


class DirectRoutes:
    """The ASGI middleware that sends each HTTP request of a direct route to its function, and all others to the
    framework.

    FastAPI passes a request through eleven functions between the middleware and a route, which took 6 % of the
    processor time of an API process under small jobs.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._fixed: dict[tuple[str, str], tuple[APIRoute, Handler]] = {}  # by method and path
        self._patterns: list[tuple[str, re.Pattern[str], APIRoute, Handler]] = []  # of those with path parameters
        for route in routes:
            if not isinstance(route, DirectRoute) or (handler := route.direct) is None:
                continue
            for method in route.methods or ():
                if route.param_convertors:
                    self._patterns.append((method, route.path_regex, route, handler))
                else:
                    self._fixed[method, route.path] = route, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"], handler, scope["path_params"] = found
        answer = await handler(Request(scope, receive, send))
        await answer(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[APIRoute, Handler, dict[str, str]] | None:
        method, path = scope["method"], scope["path"]
        if fixed := self._fixed.get((method, path)):
            return *fixed, {}
        for wanted, pattern, route, handler in self._patterns:
            if wanted == method and (match := pattern.match(path)):
                return route, handler, match.groupdict()
        return None


def _takes_more(function: Dependant) -> bool:
    """Whether a route's function takes more than the HTTP request, path parameters and dependencies."""
    return bool(
        function.query_params or function.header_params or function.cookie_params or function.body_params
        or function.websocket_param_name or function.http_connection_param_name or function.response_param_name
        or function.background_tasks_param_name or function.security_scopes_param_name
    )  # fmt: skip
