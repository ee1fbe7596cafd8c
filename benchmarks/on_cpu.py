"""Time a case on the CPU: what is computed, the whole path of a worker's child, and the peers, in turns."""

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from warpdesk_server.benchmarks.cases import Call, Case, Inputs, prepare, version
from warpdesk_server.benchmarks.report import Timing, interleave
from warpdesk_server.benchmarks.rows import Row

_OWNER = "bench"


def measure(case: Case, child: "Child | None", left_out: dict[str, str]) -> list[Row]:
    """Rows of one case; what cannot run here is named in `left_out` with the reason."""
    inputs = case.inputs()
    ready = prepare(case.peers, inputs)
    left_out |= {f"{case.operation}: {name}": reason for name, reason in ready.left_out.items()}
    calls: dict[tuple[str, str], Call] = {("Warpdesk", "compute"): case.call(inputs)}
    calls |= {(name, "peer"): call for name, call in ready.calls.items()}
    times = interleave(calls, case.repeats, case.burst)
    if child is not None:
        # By itself: it writes files, and what is timed after it in turns would find caches and memory cold.
        times |= interleave({("Warpdesk", "end to end"): child.call(case, inputs)}, case.repeats)
    ours = times["Warpdesk", "compute"]
    rows = []
    for (by, what), timing in times.items():
        peer = ready.peers.get(by)
        taken = Timing(*(seconds * (peer.per if peer else 1) for seconds in (timing.median, timing.low, timing.high)))
        goal = case.goal.peers.get(by)
        ratio = taken.median / ours.median
        rows.append(
            Row(
                operation=case.operation,
                case=case.label,
                on="cpu",
                what=what,
                by=by,
                version=version(peer.distribution) if peer else "",
                threads=str(peer.threads) if peer else "all",
                time=taken,
                ratio=ratio if peer else None,
                goal=f">= {goal:.3g} times" if goal else "",
                reached=None if goal is None else ratio >= goal,
                note=peer.note if peer else "",
            )
        )
    return rows


class Child:
    """The work of a worker's child process for one job, without the queue: read the inputs, compute, write the result.

    The inputs lie in the store, as after an upload. Raises ImportError where the worker's packages are missing.
    """

    def __init__(self, probe: Any = None) -> None:
        from warpdesk_server.kernels.catalogue import OPERATIONS
        from warpdesk_server.workers.child import execute
        from warpdesk_server.workers.child.device import without_gpu
        from warpdesk_server.workers.queue.protocol import Failed, JobRequest
        from warpdesk_server.workers.store.spool import SpoolStore

        self._folder = Path(tempfile.mkdtemp(prefix="warpdesk-bench-"))
        self._store = SpoolStore(self._folder)
        self._numbers = itertools.count()
        self._probe = probe or without_gpu("the benchmark asks for the CPU")
        self._run: Callable[..., Any] = execute.run
        self._request, self._failed, self._operations = JobRequest, Failed, OPERATIONS

    def call(self, case: Case, inputs: Inputs) -> Call:
        ids = {name: self._stored(array) for name, array in inputs.items() if array.size}
        number = 0

        def run() -> Call:
            nonlocal number
            number = next(self._numbers)
            request = self._request(
                id=f"job_{number}",
                owner=_OWNER,
                operation=case.operation,
                params=dict(case.params),
                inputs=ids,
                seed=1,
                timeout=600.0,
                result_ttl=600.0,
                backend="cpu" if self._probe.device is None else "gpu",
            )
            (outcome,) = self._run([(request, 1)], self._store, self._probe, self._operations)
            if isinstance(outcome, self._failed):
                raise RuntimeError(f"{case.operation}, {case.label}: {outcome.message}")
            return lambda: self._store.delete_result(outcome.result)

        return run

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _stored(self, array: Any) -> str:
        with self._store.writer(_OWNER, array.dtype.name, array.shape, 3600) as writer:
            writer.take(array.tobytes())
            return str(writer.commit(has_nan=False, has_inf=False).id)
