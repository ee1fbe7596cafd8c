"""`warpdesk health`: the health check of a container. Exits with 0 where a service or a worker is alive."""

import argparse
import os

from warpdesk.cli.command import Misconfigured, Subcommands, fail
from warpdesk_server.cli.environment import read


def add(commands: Subcommands) -> None:
    health = commands.add_parser(
        "health",
        help="exit with 0 where a service, or a worker of this host, is alive, else with 1",
        description="Ask once, say one sentence, and exit with 0 or 1, as the health check of a container wants it.",
    )
    health.add_argument("--url", help="the service (default: WARPDESK_URL or http://127.0.0.1:8000)")
    health.add_argument("--ready", action="store_true", help="whether it can run jobs, not only whether it is alive")
    health.add_argument(
        "--worker", action="store_true", help="whether a worker of this host reported lately to WARPDESK_REDIS_URL"
    )
    health.set_defaults(run=_health)


def _health(chosen: argparse.Namespace) -> int:
    from warpdesk_server.service.health import of_service, of_workers
    from warpdesk_server.workers.settings import WorkerSettings

    if chosen.worker and (chosen.url or chosen.ready):
        raise Misconfigured("--worker asks Redis, --url and --ready ask the service: give one of the two")
    try:
        if chosen.worker:
            found = of_workers(read(WorkerSettings).redis_url)
        else:
            found = of_service(chosen.url or os.environ.get("WARPDESK_URL") or "http://127.0.0.1:8000", chosen.ready)
    except ValueError as error:
        raise Misconfigured(str(error)) from None
    if not found.healthy:
        return fail(found.sentence)
    print(found.sentence)
    return 0
