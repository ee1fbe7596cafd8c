"""Command-line options of the benchmark `operations`."""

import argparse
from pathlib import Path

BOUND = 1.1  # times as slow as before, unless another is given


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("operation", nargs="*", help="which to measure (default: all)")
    parser.add_argument("--sizes", choices=("small", "full"), default="full", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured, and where")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a chart (needs warpdesk-server[picture])")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="exit with 1 where something became slower")
    parser.add_argument(
        "--bound", type=float, default=BOUND, help="how many times as slow counts (default: %(default)s)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpu", action="store_true", help="fail where there is no GPU")
    where.add_argument("--cpu", action="store_true", help="leave a GPU alone")
