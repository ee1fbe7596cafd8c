"""A route without most of what the framework does at each request."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app import queries


class Direct(APIRoute):
    """Calls its function with the request, texts of the path, and what each dependency makes of the request.

    To find out what a function depends on takes the framework half of what a refusal costs, at each request. A function
    that declares anything else, such as a query parameter, is left to the framework.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        declared = self.dependant
        if declared.query_params or declared.header_params or declared.cookie_params or declared.body_params:
            return super().get_route_handler()
        texts = [field.name for field in declared.path_params]
        needs = [(need.name, need.call) for need in declared.dependencies if need.name and need.call]

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
