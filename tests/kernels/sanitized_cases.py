"""Run the small cases of a family on the emulated device inside a sanitizer: `python -m … <mode> <family>`."""

import sys

from tests.cudasim.device import EmulatedDevice
from tests.kernels.families import cases


def main(mode: str, family: str) -> None:
    for case in cases(family):
        if case.small:
            case.run(EmulatedDevice(sanitize=mode))
            print(case, flush=True)  # noqa: T201 (the test reads it)


if __name__ == "__main__":
    main(*sys.argv[1:])
