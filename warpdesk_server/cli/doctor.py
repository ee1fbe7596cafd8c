"""`warpdesk doctor`: check the machine, GPU and kernels, and name the remedy of each failure."""

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from warpdesk.cli.command import Misconfigured, Subcommands
from warpdesk_server.cli.architecture import architecture
from warpdesk_server.cli.environment import read

if TYPE_CHECKING:
    from warpdesk_server.doctor.check import Findings


def add(commands: Subcommands) -> None:
    doctor = commands.add_parser("doctor", help="look at the machine, GPU and kernels, and say what would mend what")
    doctor.add_argument("--quick", action="store_true", help="leave out what compiles: registers, examples")
    doctor.add_argument(
        "--arch", type=architecture, metavar="SM", help="show the kernels on this architecture, e.g. sm_90"
    )
    doctor.add_argument(
        "--calibrate", action="store_true", help="measure what operations take on GPU and CPU, for backend auto"
    )
    doctor.add_argument(
        "--join", action="store_true", help="look only whether a worker here could join the service its settings name"
    )
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)


def _doctor(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.workers.settings import WorkerSettings

    if chosen.quick and chosen.arch:
        raise Misconfigured("--quick leaves out the kernels, which --arch asks for: give one of the two")
    if chosen.join and (chosen.quick or chosen.arch or chosen.calibrate):
        raise Misconfigured("--join looks at the way to the service, and not at this machine: give it alone")
    worker, settings = read(WorkerSettings), read(Settings)  # the machine is looked at as a worker would
    if chosen.join:
        from warpdesk_server.doctor.join import join

        return _findings(join(worker, settings), chosen.json)
    with suppress(UnusableHome):  # the findings tell
        if not chosen.quick:
            make_private(worker.home)
    with tempfile.TemporaryDirectory(prefix="warpdesk-") as nowhere:
        places = worker.cache_environment()
        if not worker.home.is_dir():
            places["NUMBA_CACHE_DIR"] = os.environ.get("NUMBA_CACHE_DIR") or nowhere
        os.environ.update(places)  # before Numba is imported
        from warpdesk_server.doctor import Wish, examine

        with _quiet():
            findings = examine(worker, settings, Wish(chosen.quick, chosen.arch, chosen.calibrate))
    return _findings(findings, chosen.json)


def _findings(findings: "Findings", as_json: bool) -> int:
    print(json.dumps(findings.as_json()) if as_json else findings.as_text())
    return 0 if findings.healthy else 1


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence a worker's log lines during `warpdesk doctor`: the findings contain the same facts."""
    log = logging.getLogger("warpdesk")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
