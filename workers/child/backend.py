"""Choose where an operation runs, and say why."""

from collections.abc import Callable
from dataclasses import dataclass

from warpdesk.models import BackendWish
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.faults import CompileFailed, LaunchFailed, NoDevice, OutOfMemory
from warpdesk_server.kernels.operation import Backend, Operation
from warpdesk_server.workers.child.cost import Pick
from warpdesk_server.workers.child.device import Probe

# After these the same job completes on the CPU. DeviceLost is not among them (its process must end), and anything else
# is a bug and must be seen.
RECOVERABLE = (NoDevice, OutOfMemory, LaunchFailed, CompileFailed)


@dataclass(frozen=True)
class Choice:
    backend: Backend
    device: Device | None = None  # present exactly when backend is "gpu"
    reason: str | None = None  # why not the GPU, when nobody asked for the CPU and it was not picked as the quicker
    picked: str | None = None  # by what prediction it was picked where both could


def choose(
    operation: Operation,
    wish: BackendWish,
    found: Probe,
    keep_off_gpu: str | None = None,
    pick: Callable[[], Pick] | None = None,
    sooner: str | None = None,
) -> Choice:
    """The backend on which the child computes a job.

    It is the one that the job asked for, or under "auto" the one of `pick`, or else the GPU. Raises NoDevice if "gpu"
    was asked for and cannot be used.

    `pick` is asked where there is a GPU and the operation knows how. `keep_off_gpu` is a reason not to use a GPU that
    is there (the job's workers died). `sooner` is the prediction by which a worker without a GPU took the job from
    those that have one.
    """
    if wish == "cpu":
        return Choice("cpu")
    if wish == "auto" and found.device is None and sooner is not None:
        return Choice("cpu", picked=sooner)
    reason = None
    if found.device is None:
        reason = found.report.reason or "there is no GPU"
    elif not operation.gpu:
        reason = f"{operation.name} has no GPU implementation"
    elif wish != "gpu":
        reason = keep_off_gpu
    if reason is not None:
        if wish == "gpu":
            raise NoDevice(reason)
        return Choice("cpu", reason=reason)
    if wish == "auto" and pick is not None:
        picked = pick()
        return Choice(picked.backend, found.device if picked.backend == "gpu" else None, picked=picked.reason)
    return Choice("gpu", found.device)
