"""A route class that bypasses most of FastAPI's work for each HTTP request."""

from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from warpdesk_server.app.http import queries


class DirectRoute(APIRoute):
    """A route that calls its function with the HTTP request, the path parameters as strings, and the dependencies'
    values.

    FastAPI resolves a function's dependencies again for each request, which is half the cost of a refusal. A function
    that needs anything else, such as a query parameter, is still called by FastAPI.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
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
            return super().get_route_handler()

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


def _takes_more(function: Dependant) -> bool:
    """Whether a route's function takes more than the HTTP request, path parameters and dependencies."""
    return bool(
        function.query_params or function.header_params or function.cookie_params or function.body_params
        or function.websocket_param_name or function.http_connection_param_name or function.response_param_name
        or function.background_tasks_param_name or function.security_scopes_param_name
    )  # fmt: skip
