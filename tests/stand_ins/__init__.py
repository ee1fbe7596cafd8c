"""Stand-ins for a device on which things go wrong and for a GPU's driver, and how processes get them.

A process is started with them by `python -m tests.stand_ins MODULE [ARGUMENTS]`, and starts its own children likewise.
What they are is said by environment variables that only this package reads:

    STAND_IN_FAULTS     what goes wrong on the device: tests.stand_ins.faults
    STAND_IN_NVML       the script that the driver plays: tests.stand_ins.nvml
    STAND_IN_DEVICES    "module:factory", given by `warpdesk serve` to one worker for each GPU of the script
"""

from collections.abc import Mapping


def through(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The modules to start one of ours through, for the stand-ins an environment names; () where it names none."""
    return ("tests.stand_ins",) if any(name.startswith("STAND_IN_") for name in environment) else ()
