"""Run the small cases of a family on the emulated device inside a sanitizer: `python -m … <mode> <family>`."""

import sys

from tests.cudasim.device import EmulatedDevice, TooManyThreads
from tests.kernels.families import cases


def main(mode: str, family: str) -> None:
    launched = set()
    for case in cases(family):
        if case.small:
            device = EmulatedDevice(sanitize=mode)
            try:
                case.run(device)
            except TooManyThreads as reason:
                print(f"left out {case}: {reason}", file=sys.stderr)  # noqa: T201
            else:
                launched |= {(source.path.name, kernel) for source, kernel in device.launches}
    for file, kernel in sorted(launched):
        print(file, kernel)  # noqa: T201 (the test reads it)


if __name__ == "__main__":
    main(*sys.argv[1:])
