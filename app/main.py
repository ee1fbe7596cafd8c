"""The application: routers listed by hand, what they share, and one OpenAPI document."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware

from warpdesk_server.app import background, startup
from warpdesk_server.app.access import endpoints as access
from warpdesk_server.app.access.audit import Audit
from warpdesk_server.app.access.auth import Gate
from warpdesk_server.app.arrays import endpoints as uploads
from warpdesk_server.app.budgets import endpoints as budgets
from warpdesk_server.app.datasets import endpoints as datasets
from warpdesk_server.app.health import endpoints as health
from warpdesk_server.app.http import docs, document, observe, queries
from warpdesk_server.app.http.direct import DirectRoutes
from warpdesk_server.app.jobs import (
    bundle,
    dead_letters,
    events,
    operations,
    queue_endpoints,
    results,
    steps,
    submission,
)
from warpdesk_server.app.jobs import endpoints as jobs
from warpdesk_server.app.kit import errors, problems
from warpdesk_server.app.kit.limits import Limits
from warpdesk_server.app.remote import endpoints as remote
from warpdesk_server.app.rounds import endpoints as rounds
from warpdesk_server.app.settings import Settings
from warpdesk_server.kernels.catalogue import CATALOGUE
from warpdesk_server.kernels.operation import Computation
from warpdesk_server.workers.store.protocol import Store


def create_app(
    settings: Settings | None = None,
    operations_offered: Mapping[str, Computation] | None = None,
    store: Store | None = None,
) -> FastAPI:
    """The API, put together; it connects when it starts. Raises `auth.UnusableKeys` where it would be open to other
    machines."""
    settings = settings or Settings()
    offered = CATALOGUE if operations_offered is None else operations_offered

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[None]:
        async with startup.opened(settings, offered, api.version, store) as services:
            api.state.services = services
            async with background.running(background.loops(services, api.state.gate)):
                yield

    api = FastAPI(
        title="Warpdesk",
        version=version("warpdesk"),
        summary="Trading indicators, Monte Carlo, matrix products, differential-privacy noise and secure aggregation",
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        dependencies=[Depends(queries.declared_alone)],
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        # A span of a request that waited for a private job is that job's time.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    api.state.audit = Audit(settings.audit_path)
    api.state.gate = Gate(
        settings.keys_path,
        settings.home,
        settings.host,
        Limits(
            settings.failed_logins_per_second,
            settings.failed_login_burst,
            "One address may send so many requests without a valid key or join token",
        ),
    )
    errors.install(api)
    routers = (  # in this order it is looked where a request belongs: the most frequent first
        submission.router,
        bundle.router,
        operations.router,
        uploads.router,
        jobs.router,
        results.router,
        events.router,
        steps.router,
        datasets.router,
        rounds.router,
        dead_letters.router,
        budgets.router,
        access.router,
        queue_endpoints.router,
        remote.router,
        health.router,
        problems.router,
        docs.router,
    )
    for router in routers:
        api.include_router(router)
    # FastAPI's own stack has layers around these for what is not used here.
    direct = DirectRoutes(AsyncExitStackMiddleware(api.router), [route for each in routers for route in each.routes])
    api.middleware_stack = observe.Observe(ExceptionMiddleware(direct, api.exception_handlers))
    document.install(api, offered)
    return api
