"""`warpdesk bench`: measure every operation and named libraries on this machine."""

import argparse
import os

from warpdesk.cli.command import Misconfigured, Subcommands
from warpdesk_server.benchmarks import options
from warpdesk_server.cli.environment import read


def add(commands: Subcommands) -> None:
    bench = commands.add_parser("bench", help="measure every operation beside named libraries, on this machine")
    options.add(bench)
    bench.set_defaults(run=_bench)


def _bench(chosen: argparse.Namespace) -> int:
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.workers.settings import WorkerSettings

    settings = read(WorkerSettings)
    try:
        make_private(settings.home)
    except UnusableHome as error:
        raise Misconfigured(str(error)) from None
    os.environ.update(settings.cache_environment())  # before Numba is imported
    from warpdesk_server.benchmarks.operations import bench

    return bench(chosen)
