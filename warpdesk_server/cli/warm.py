"""`warpdesk warm`: compile kernels and CPU code now, not when the first worker starts."""

import argparse
import json
import os

from warpdesk.cli.command import Misconfigured, Subcommands, fail
from warpdesk_server.cli.architecture import architecture
from warpdesk_server.cli.environment import read


def add(commands: Subcommands) -> None:
    warm = commands.add_parser("warm", help="compile kernels and CPU code now, not when the first worker starts")
    warm.add_argument("--arch", nargs="+", type=architecture, metavar="SM", help="e.g. sm_90 (default: the GPUs here)")
    warm.add_argument("--all", action="store_true", help="every architecture that is supported; needs no GPU")
    warm.add_argument("--kernels-only", action="store_true", help="leave out the CPU code")
    warm.add_argument("--json", action="store_true")
    warm.set_defaults(run=_warm)


def _warm(chosen: argparse.Namespace) -> int:
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.workers.settings import WorkerSettings

    settings = read(WorkerSettings)
    os.environ.update(settings.cache_environment())  # before Numba is imported
    from warpdesk_server.kernels.gpu import nvrtc
    from warpdesk_server.kernels.gpu.cubins import Cubins, default_directory
    from warpdesk_server.precompile import architectures_here, architectures_of, warm

    try:
        make_private(settings.home)
        wanted = chosen.arch or ([] if settings.device == "cpu" else architectures_here())
        cubins = Cubins(default_directory(), nvrtc.find()) if wanted or chosen.all else None
        if cubins is not None and chosen.all:
            wanted = sorted({*wanted, *architectures_of(cubins)}, key=lambda name: int(name[3:]))
        if cubins is not None and (unknown := sorted({*wanted} - {*(made := cubins.compiler.architectures())})):
            return fail(f"no code for {', '.join(unknown)}: NVRTC {cubins.compiler.version} knows {', '.join(made)}")
        warmed = warm(cubins, wanted, not chosen.kernels_only)
    except UnusableHome as error:
        raise Misconfigured(str(error)) from None
    except nvrtc.CompileError as error:
        return fail(f"{error}: {error.remedy}" if error.remedy else str(error))
    except OSError as error:
        return fail(f"compiled kernels cannot be kept: {error}; set WARPDESK_KERNEL_CACHE to a directory of yours")
    print(json.dumps(warmed.as_json()) if chosen.json else warmed.as_text())
    return 0 if warmed.complete else 1
