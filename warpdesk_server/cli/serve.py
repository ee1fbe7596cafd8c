"""`warpdesk serve`: run the API, workers, and Redis where none is configured."""

import argparse

from warpdesk.cli.command import Subcommands, fail
from warpdesk_server.cli.environment import read, require_redis_url


def add(commands: Subcommands) -> None:
    serve = commands.add_parser("serve", help="run the API, workers, and Redis where none is configured")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument(
        "--port", type=_port, default=8000, help="port to listen on, 0 for a free one (default: %(default)s)"
    )
    serve.add_argument("--no-worker", action="store_true", help="the API alone; workers run elsewhere")
    serve.add_argument(
        "--workers", type=_positive, metavar="N", help="how many workers (default: one per GPU and one on the CPU)"
    )
    serve.set_defaults(run=_serve)


def _serve(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.service.serve import CannotServe, Options, serve
    from warpdesk_server.workers import logs
    from warpdesk_server.workers.settings import WorkerSettings

    read(WorkerSettings)  # before a worker of this service finds out
    settings = read(Settings)
    if settings.redis_url:  # else the service starts one
        require_redis_url(settings.redis_url)
    logs.configure(settings.log_format, settings.log_level)

    options = Options(chosen.host, chosen.port, not chosen.no_worker, chosen.workers)
    try:
        # In one write, since the API and the workers write their lines to the same place.
        serve(options, settings, lambda text: print(f"{text}\n", end="", flush=True))
    except CannotServe as error:
        return fail(str(error))
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: ports are 0 to 65535, and 0 takes a free one")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers")
    return int(text)
