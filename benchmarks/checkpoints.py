"""Benchmark of a task's checkpoints: which part of its time do they take at the default interval?

A task of short steps runs as a worker's child runs it, with a store on this disk that forces its files. Its state has a
few kilobytes, as that of monte_carlo_until, or as much as a model. `share` is the part of the whole time in which the
state was written; the goal is a fiftieth. What a death may cost is the time between two.
"""

import tempfile
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np

from warpdesk_server.benchmarks.report import Row, show
from warpdesk_server.kernels.operation import Cost, Example
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.task import Context, Task, TaskLimits
from warpdesk_server.workers.child import tasks
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.pipe import Attempt, Stepped, receive
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.spool import SpoolStore

SECONDS = 120.0  # of each task
STEP = 0.05
SIZES = {"16 KiB": 16 << 10, "16 MiB": 16 << 20, "256 MiB": 256 << 20}
SHARE = 0.02


class _Params(Params):
    bytes: int


def run(params: _Params, context: Context) -> dict[str, Any]:
    state = np.zeros(params.bytes, np.uint8)
    until, step = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        time.sleep(STEP)
        step += 1
        context.report(step)
        context.checkpoint(step, lambda: {"state": state})
    return {}


class _Waiting(Task):
    def function(self) -> Any:
        return run


def main() -> int:
    rows = [_row(label, size) for label, size in SIZES.items()]
    show("checkpoints", rows)
    return int(any(row["share"] > SHARE for row in rows))


def _row(label: str, size: int) -> Row:
    task = _Waiting(
        name="waiting",
        summary="",
        package="warpdesk_server.benchmarks",
        params=_Params,
        inputs=(),
        outputs=(),
        example=Example({"bytes": 1}),
        cost=lambda params, _: Cost(params.bytes),
        limits=lambda params, _: TaskLimits(60.0, None, params.bytes + (1 << 20), 1 << 10),
    )
    request = JobRequest(
        id="job_1", owner="", operation="waiting", params={"bytes": size}, inputs={}, timeout=60.0, result_ttl=60.0,
        task=True, checkpoint_bytes=size + (1 << 20),
    )  # fmt: skip
    spent = 0.0
    with tempfile.TemporaryDirectory() as home:
        store = SpoolStore(Path(home) / "store")
        keep = store.keep_checkpoint

        def timed(*arguments: Any) -> None:
            nonlocal spent
            began = time.monotonic()
            keep(*arguments)
            spent += time.monotonic() - began

        vars(store)["keep_checkpoint"] = timed
        parent, child = Pipe()
        began = time.monotonic()
        least = WorkerSettings().checkpoint_seconds
        attempt = Attempt(request=request, attempt=1, key=None)
        outcome = tasks.run(attempt, {"waiting": task}, store, without_gpu("not asked for"), child, least)
        took = time.monotonic() - began
        assert outcome.kind == "succeeded", outcome
        messages = [receive(parent) for _ in iter(parent.poll, False)]
        count = sum(isinstance(message, Stepped) and bool(message.checkpoint) for message in messages)
    return {
        "state": label, "checkpoints": count, "ms each": round(1000 * spent / count, 1),
        "share": round(spent / took, 5), "s between two": round(took / (count + 1), 1),
    }  # fmt: skip
