"""Routes that are called without the framework's search for what they depend on."""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match

from tests.app.computations import COMPUTATIONS
from tests.app.conftest import SCALE, Live
from warpdesk_server.app.http.direct import DirectRoute, DirectRoutes
from warpdesk_server.app.kit.errors import MEDIA_TYPE
from warpdesk_server.app.main import create_app
from warpdesk_server.app.settings import Settings


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
    assert (route.direct is not None) == direct


def test_a_direct_route_is_the_one_that_the_framework_would_have_found(tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path), COMPUTATIONS)
    direct = middleware(app, DirectRoutes)
    found = 0
    for method, path in itertools.product(("GET", "HEAD", "POST", "PUT", "DELETE"), app.openapi()["paths"]):
        filled = re.sub(r"{\w+}", "id-1", path)
        scope = {"type": "http", "method": method, "path": filled, "headers": [], "query_string": b""}
        ours = direct._find(scope)
        if ours is not None:
            theirs = next(child for match, child in matches(app, scope) if match is Match.FULL)
            assert (ours[0].endpoint, ours[2]) == (theirs["endpoint"], theirs["path_params"])
            assert method in (ours[0].methods or ())
            found += 1
    assert found > 5


@pytest.mark.parametrize("path", ["/v1/jobs/", "/v1/jobs/a/b/c", "/V1/jobs", "/v1/jobs\n"])
def test_what_is_no_path_of_a_route_goes_to_the_framework(tmp_path: Path, path: str) -> None:
    direct = middleware(create_app(Settings(home=tmp_path), COMPUTATIONS), DirectRoutes)
    assert all(direct._find({"method": method, "path": path}) is None for method in ("GET", "POST"))


def test_requests_of_direct_routes_are_refused_and_counted_like_all_others(api: Live) -> None:
    refusals = {
        "unknown": api.http.get("/v1/jobs/job_0"),
        "query": api.http.post("/v1/jobs?wait=1", json=SCALE),
        "method": api.http.put("/v1/jobs", json=SCALE),
        "body": api.http.post("/v1/jobs", content=b"{", headers={"Content-Type": "application/json"}),
    }
    problems = {name: (answer.status_code, answer.json()["code"]) for name, answer in refusals.items()}
    assert problems == {
        "unknown": (404, "unknown-job"),
        "query": (422, "invalid-request"),
        "method": (405, "method-not-allowed"),
        "body": (400, "malformed-json"),
    }
    for answer in refusals.values():
        assert answer.headers["Content-Type"] == MEDIA_TYPE
        assert answer.headers.keys() >= {"x-request-id", "server-timing", "x-content-type-options"}
    api.await_metrics('warpdesk_http_requests_total{code="422",method="POST",route="/v1/jobs"} 1.0')


def middleware(app: FastAPI, kind: type[DirectRoutes]) -> DirectRoutes:
    """The layer of that kind in an application's middleware."""
    layer: Any = app.middleware_stack
    while not isinstance(layer, kind):
        layer = getattr(layer, "_app", None) or layer.app
    return layer


def matches(app: FastAPI, scope: dict[str, Any]) -> Iterator[tuple[Match, dict[str, Any]]]:
    """What each route of an application says of a request, in the order in which they are asked."""
    for router in app.routes:
        for route in getattr(router, "original_router", app.router).routes:
            if isinstance(route, APIRoute):
                yield route.matches(dict(scope))  # type: ignore[misc]
