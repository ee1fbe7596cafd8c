"""Benchmark of every operation beside named peers in one run: `warpdesk bench`, `python -m benchmarks operations`.

On a CPU: the computation alone, the whole path of a worker's child, and each peer. On a GPU besides: the kernels alone,
the call from host to host, and what part that is of the copy rate or of cuBLAS's rate, measured in the same run.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from warpdesk_server.benchmarks import (
    backtest,
    bars,
    basket_options,
    cross_section,
    declared,
    dp_noise,
    federated_average,
    indicators,
    matmul,
    monte_carlo,
    on_gpu,
    options,
    portfolio,
    risk,
    secure_aggregation,
    shamir,
    tridiagonal,
    vanilla_options,
    vector,
)
from warpdesk_server.benchmarks.cases import Case, Sizes, version
from warpdesk_server.benchmarks.compare import common, compared, elsewhere, read
from warpdesk_server.benchmarks.on_cpu import Child
from warpdesk_server.benchmarks.on_cpu import measure as measure_on_cpu
from warpdesk_server.benchmarks.report import environment, print_table
from warpdesk_server.benchmarks.rows import Row, document, shown, write_csv
from warpdesk_server.kernels import install
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import NoDevice

_ALL: tuple[Case, ...] = (
    *indicators.CASES,
    *declared.CASES,
    *bars.CASES,
    *basket_options.CASES,
    *cross_section.CASES,
    *portfolio.CASES,
    *backtest.CASES,
    *matmul.CASES,
    *monte_carlo.CASES,
    *risk.CASES,
    *dp_noise.CASES,
    *secure_aggregation.CASES,
    *federated_average.CASES,
    *shamir.CASES,
    *vanilla_options.CASES,
    *tridiagonal.CASES,
    *vector.CASES,
)
CASES = tuple(replace(case, repeats=3) if case.sizes == "small" else case for case in _ALL)
ACCURACY = {"bollinger": indicators.accuracy, "matmul": matmul.accuracy}


@dataclass
class Run:
    """The state of a run: the measured rows, and what was left out with the reason."""

    rows: list[Row] = field(default_factory=list)
    accuracy: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # distributions of peers
    device: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        where = environment()
        return document(
            {**where, "device": {**where["device"], **self.device}},
            self.rows,
            self.left_out,
            measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            accuracy=self.accuracy,
        )


def select(operations: Iterable[str], sizes: Iterable[Sizes]) -> list[Case]:
    """The cases of some operations, of all where none is named. Raises ValueError for one that is not there."""
    names, wanted = dict.fromkeys(case.operation for case in CASES), set(operations)
    if unknown := sorted(wanted - set(names)):
        raise ValueError(f"no benchmark of {', '.join(unknown)}; there are {', '.join(names)}")
    return [case for case in CASES if case.sizes in set(sizes) and (not wanted or case.operation in wanted)]


def run_on_cpu(cases: Sequence[Case], out: Run, deadline: float = float("inf"), repeats: int | None = None) -> None:
    out.missing |= {peer.distribution for case in cases for peer in case.peers if not version(peer.distribution)}
    child = _child(out)
    try:
        for case in cases:
            if time.monotonic() > deadline:
                out.left_out[f"{case.operation}, {case.label} on the CPU"] = "no time was left"
                continue
            _tell(case, "cpu")
            few = case if repeats is None else replace(case, repeats=min(repeats, case.repeats))
            out.rows += measure_on_cpu(few, child, out.left_out)
    finally:
        if child is not None:
            child.close()


def run_on_gpu(cases: Sequence[Case], device: Device, out: Run, deadline: float = float("inf")) -> None:
    rates = on_gpu.measure_rates(device)
    out.device = {
        "name": device.name,
        "architecture": device.architecture,
        "multiprocessors": device.multiprocessors,
        "l2_bytes": device.l2,
        "measured_copy_bytes_per_second": rates.copy,
        "measured_copy_by": rates.copy_by,
        "measured_keystream_bytes_per_second": rates.keystream,
        "before": on_gpu.board(),
    }
    for case in cases:
        if time.monotonic() > deadline:
            out.left_out[f"{case.operation}, {case.label} on the GPU"] = "no time was left"
            continue
        if not OPERATIONS[case.operation].gpu:
            out.left_out[f"{case.operation}, {case.label} on the GPU"] = "it has no GPU implementation"
            continue
        _tell(case, "gpu")
        out.rows += _case_on_gpu(case, device, rates, out)
        device.memory.release()
    if any(case.operation == "secure_aggregation" for case in cases):
        large = any(case.sizes == "large" for case in cases)
        out.rows.append(on_gpu.masked_sum(device, rates, 10_000_000 if large else 10_000, secure_aggregation.SUM))
    out.device["after"] = on_gpu.board()  # clocks and temperature of a GPU at work


def _case_on_gpu(case: Case, device: Device, rates: on_gpu.Rates, out: Run) -> list[Row]:
    inputs = case.inputs()
    if case.params.get("algorithm") == "library" or "precision" in case.params:
        if (reason := _no_library(case, device, inputs)) is not None:
            out.left_out[f"{case.operation}, {case.label} on the GPU"] = reason
            return []
        return on_gpu.measure(case, device, rates, inputs, library=True)
    rows = on_gpu.measure(case, device, rates, inputs)
    if case.operation == "tridiagonal_solve":
        try:
            solve = tridiagonal.cusparse(device, inputs)
        except (ImportError, AttributeError) as error:
            out.left_out[f"{case.operation}, {case.label} by cuSPARSE"] = str(error)
            return rows
        if solve is not None:
            rows.append(on_gpu.library_time(case, device, solve, "cuSPARSE gtsv2StridedBatch"))
    if case.operation == "matmul" and case.sizes != "full":  # the full sizes have a case of the library's
        library = replace(case, params={"algorithm": "library"}, label=case.label.replace("kernel", "library"))
        if (reason := _no_library(library, device, inputs)) is not None:
            out.left_out[f"{case.operation}, {library.label} on the GPU"] = reason
        else:
            other = on_gpu.measure(library, device, rates, inputs, library=True)
            rows = [on_gpu.against_library(rows[0], other[0], case.goal.part), *rows[1:], *other]
    return rows


def _no_library(case: Case, device: Device, inputs: Any) -> str | None:
    try:
        answer: Any = case.call(inputs, device)()
    except NoDevice as error:
        return str(error)
    return None if answer["algorithm"] == "library" else str(answer["algorithm_reason"])


def _tell(case: Case, where: str) -> None:
    """Print which case is being measured."""
    if sys.stderr.isatty():
        print(f"{where}: {case.operation}, {case.label}", file=sys.stderr)


def _child(out: Run) -> Child | None:
    try:
        return Child()
    except ImportError as error:
        out.left_out["the path of a worker's child"] = str(error)
        return None


def accuracy(operations: Iterable[str], out: Run) -> None:
    wanted = set(operations)
    for name, rows in ACCURACY.items():
        if not wanted or name in wanted:
            out.accuracy[name] = rows()


def show(out: Run) -> None:
    facts = out.document()["environment"]
    print(f"{facts['cpu']}, {facts['cores']} cores, device {facts['device']['name']}, load {facts['load']}")
    print(", ".join(f"{library} {number}" for library, number in facts["versions"].items()))
    if rate := out.device.get("measured_copy_bytes_per_second"):
        words = out.device["measured_keystream_bytes_per_second"]
        print(
            f"copy rate {rate / 1e12:.3g} TB/s by {out.device['measured_copy_by']}, keystream {words / 1e12:.3g} TB/s"
        )
    print_table([shown(row) for row in out.rows])
    for name, rows in out.accuracy.items():
        print(f"\naccuracy of {name}")
        print_table(rows)
    for what, reason in sorted(out.left_out.items()):
        print(f"left out: {what} ({reason})")
    if out.missing:
        print(f"to measure beside what is missing: {install.pip('install', *sorted(out.missing))}")


def bench(chosen: argparse.Namespace, device: Device | None = None) -> int:
    """Measure what the command line asks for; returns its exit code."""
    out = Run()
    try:
        cases = select(chosen.operation, [chosen.sizes])
        before = read(chosen.compare) if chosen.compare else None
        named = {(case.operation, case.label) for case in cases}
        if before is not None and not common(before, named):
            raise ValueError(
                f"{chosen.compare} has none of the {len(named)} cases that would be measured: other --sizes?"
            )
        _make_room(chosen)
        if device is None and not chosen.cpu:
            device = _gpu(out, chosen.gpu)
    except (ValueError, OSError, NoDevice) as error:
        print(error)
        return 2
    run_on_cpu(cases, out)
    if device is not None:
        large = select(chosen.operation, ["large"]) if chosen.sizes == "full" else []
        run_on_gpu([*cases, *large], device, out)
    accuracy(chosen.operation, out)
    show(out)
    return finish(out, chosen, before)


def _make_room(chosen: argparse.Namespace) -> None:
    """Check before the run that its results can be saved. Raises OSError and ValueError."""
    for path in (chosen.json, chosen.csv, chosen.picture):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
                raise ValueError(f"{path} cannot be written")
    if chosen.picture and find_spec("matplotlib") is None:
        raise ValueError(f"--picture needs matplotlib: {install.pip('install', 'matplotlib')}")


def finish(out: Run, chosen: argparse.Namespace, before: Mapping[str, Any] | None) -> int:
    document = out.document()
    if chosen.json:
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    if chosen.csv:
        write_csv(chosen.csv, out.rows)
    if chosen.picture:
        from warpdesk_server.benchmarks.picture import draw

        facts = document["environment"]
        draw(chosen.picture, out.rows, f"{facts['cpu']}, {facts['cores']} cores, device {facts['device']['name']}")
    if before is None:
        return 0
    lines = compared(before, out.rows, chosen.bound, chosen.operation)
    print(f"\ncompared with {chosen.compare}, of {before['measured_at']}")
    if other := elsewhere(before, document["environment"]):
        print(f"another machine: {other}")
    print_table(lines)
    slower, gone = (sum(line["verdict"] == verdict for line in lines) for verdict in ("slower", "gone"))
    both = len(lines) - gone
    print(f"{slower} of {both} slower by more than {chosen.bound:g} times and both runs' spreads; {gone} are gone")
    if both == 0:
        print(f"{chosen.compare} has no row that was measured now")
        return 2
    return 1 if slower else 0


def _gpu(out: Run, wanted: bool) -> Device | None:
    try:
        return on_gpu.open_gpu()
    except NoDevice as error:
        if wanted:
            raise
        out.left_out["the GPU"] = str(error)
        return None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks operations")
    options.add(parser)
    return bench(parser.parse_args(arguments))
