"""`warpdesk worker`: run one worker for the Redis of WARPDESK_REDIS_URL."""

import argparse
import math
import os
from contextlib import suppress

from warpdesk.cli.command import Misconfigured, Subcommands
from warpdesk_server.cli.environment import read, require_redis_url


def add(commands: Subcommands) -> None:
    worker = commands.add_parser("worker", help="run one worker for the Redis of WARPDESK_REDIS_URL")
    worker.add_argument(
        "--idle-exit", type=_seconds, metavar="SECONDS", help="end after so long without a job (default: never)"
    )
    worker.add_argument(
        "--max-seconds",
        type=_seconds,
        metavar="SECONDS",
        help="take no job after so long, and end when the last one is done or given back (default: never)",
    )
    worker.add_argument(
        "--shards-on",
        metavar="URL",
        help="hand shards of jobs to a cluster, before WARPDESK_SHARDS_ON: ray://host:port, dask://host:port, or ray "
        "for the cluster that this host belongs to (default: compute them here)",
    )
    kinds = worker.add_mutually_exclusive_group()
    kinds.add_argument(
        "--takes",
        choices=["both", "all", "quick", "long", "tasks"],
        help="which jobs, before WARPDESK_TAKES: quick ones, and those that take a core longer than half a second in a "
        "second process while there are some (both, the default), all in one process (all), or one kind alone",
    )
    kinds.add_argument(
        "--tasks",
        dest="takes",
        action="store_const",
        const="tasks",
        help="take tasks alone, which run for hours in steps; the same as --takes tasks",
    )
    worker.set_defaults(run=_worker)


def _worker(chosen: argparse.Namespace) -> int:
    # The worker replaces this process, so that a supervisor sees its exit code and can send it signals.
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.service.processes import module
    from warpdesk_server.workers.settings import WorkerSettings

    given = {
        "WARPDESK_IDLE_EXIT_SECONDS": chosen.idle_exit,
        "WARPDESK_MAX_SECONDS": chosen.max_seconds,
        "WARPDESK_SHARDS_ON": chosen.shards_on,
        "WARPDESK_TAKES": chosen.takes,
    }
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    settings = read(WorkerSettings)
    require_redis_url(settings.redis_url)
    try:
        make_private(settings.home)
    except UnusableHome as error:
        raise Misconfigured(str(error)) from None
    command, needed = module("warpdesk_server.workers.parent.main")
    os.execve(command[0], command, {**os.environ, **needed})  # noqa: S606


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
