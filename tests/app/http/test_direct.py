"""Routes that are called without the framework's search for what they depend on."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, Request, Response

from warpdesk_server.app.http.direct import DirectRoute


async def caller(request: Request) -> str:
    return request.headers["caller"]


async def of_another(name: Annotated[str, Depends(caller)]) -> str:
    return name


Caller = Annotated[str, Depends(caller)]


async def plain(job_id: str, request: Request, name: Caller) -> Response:
    return Response(f"{job_id} {name} {request.method}")


async def number(job_id: int, name: Caller) -> Response:
    return Response(f"{job_id} {name}")


async def query(job_id: str, limit: int) -> Response:
    return Response(f"{job_id} {limit}")


async def deeper(job_id: str, name: Annotated[str, Depends(of_another)]) -> Response:
    return Response(f"{job_id} {name}")


def blocking(job_id: str) -> Response:
    return Response(job_id)


@pytest.mark.parametrize(
    ("function", "guards", "direct"),
    [(plain, [], True), (plain, [Depends(caller)], False), (number, [], False), (query, [], False),
     (deeper, [], False), (blocking, [], False)],
)  # fmt: skip
def test_only_what_takes_the_request_and_texts_of_the_path_is_called_directly(
    function: Callable[..., Any], guards: list[Any], direct: bool
) -> None:
    router = APIRouter(route_class=DirectRoute, dependencies=guards)
    router.get("/jobs/{job_id}")(function)
    (route,) = router.routes
    assert isinstance(route, DirectRoute)
    assert route.get_route_handler().__qualname__.startswith("DirectRoute.") == direct
