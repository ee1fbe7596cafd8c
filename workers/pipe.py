"""The messages between a worker's parent process and its child process: JSON over one socket pair."""

from multiprocessing.connection import Connection
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from warpdesk_server.workers.queue.protocol import Failed, JobRequest, Message, Stopped, Succeeded, Transfers
from warpdesk_server.workers.queue.reports import DeviceMemory, DeviceReport, FailedExample, WarmUp

LOST_DEVICE = 77  # the child's exit code after it reported a lost device


class Orders(Message):
    """Parent to child, the first message: what the child must leave alone."""

    no_gpu: str | None = None  # a reason to leave the GPU alone
    # Examples not to try on the GPU, and why: an earlier child was lost in them.
    skip: dict[str, str] = Field(default_factory=dict)


class Attempt(Message):
    request: JobRequest
    attempt: int
    claim: str = Field(default="", repr=False)  # the token of its claim
    attached: str = Field(default="", repr=False)  # its attached inputs, as JSON
    checkpoint: str = ""  # of a task: the name of the one from which it resumes
    key: str | None = Field(None, repr=False)  # of its noise, where a budget was charged for it: 32 bytes, hexadecimal


class StopTask(Message):
    """Parent to child: the task that it runs shall keep its state and stop. Ignored where it has ended meanwhile."""

    kind: Literal["stop"] = "stop"
    job: str


class Assignment(Message):
    """Parent to child: run these attempts.

    Several attempts have the same batch key: they are of one operation, and share a launch or at least this message.
    """

    kind: Literal["run"] = "run"
    jobs: tuple[Attempt, ...]
    gpu_wait: float | None = None  # as `Held.gpu_wait`, of the first job
    keep_off_gpu: str | None = None
    refused: dict[str, str] = Field(default_factory=dict)  # kernels that are kept off the GPU, and why
    canary: bool = False  # ask the GPU what is known first: the job is the first to try something again

    @property
    def first(self) -> JobRequest:
        """The request of the assignment's first job; operation, backend wish and priority are those of all its jobs."""
        return self.jobs[0].request


# "kept-off" is not a fault: the kernel's breaker was open, and it was not tried.
FaultKind = Literal["out-of-memory", "launch", "compile", "kept-off"]


class KernelFault(Message):
    """A GPU fault that the child reports to its parent, and that the CUDA context survives.

    `kernel` is "" if no kernel caused it, as for an allocation.
    """

    kind: FaultKind
    kernel: str
    message: str


# The outcome of a request for a kernel: its cubin was cached, had to be compiled, or could not be compiled.
Compilation = Literal["hit", "miss", "error"]


class OfDevice(Message):
    """The device status in every message that a serving child sends to its parent."""

    canary_at: float | None = None  # Unix seconds: when the device last passed the canary check
    memory: DeviceMemory | None = None
    compilations: dict[Compilation, int] = Field(default_factory=dict)  # since the message before


Step = Literal["looking for a GPU", "warming up on the GPU", "warming up on the CPU"]


class Starting(Message):
    """Child to parent: the start-up step that comes next, so that the parent knows what a child died of.

    On the CPU such steps follow `Ready` too, between two assignments.
    """

    kind: Literal["starting"] = "starting"
    step: Step
    trial: str | None = None  # the example that is tried next
    warm_up: WarmUp | None = None
    failed: tuple[FailedExample, ...] = ()  # the examples that failed since the message before, if that was `Ready`


class Ready(OfDevice):
    """Child to parent: it computes jobs from now on, and these examples failed.

    On a GPU every example was tried. On the CPU one has succeeded, or all have failed.
    """

    kind: Literal["ready"] = "ready"
    device: DeviceReport
    seconds: float
    warm_up: WarmUp
    failed: tuple[FailedExample, ...] = ()


class Progressed(Message):
    """Child to parent: how much of a lone job is done."""

    kind: Literal["progressed"] = "progressed"
    job: str
    done: float  # 0 to 1


class Stepped(Message):
    """Child to parent: a task has done a step. It reports numbers of it, or has kept its state, or is just alive."""

    kind: Literal["stepped"] = "stepped"
    job: str
    step: int
    done: float | None = None  # 0 to 1
    values: dict[str, float | None] | None = None
    checkpoint: str = ""  # the name of the one that has the state after the step
    again: str = ""  # why it begins again with its first step


class Answer(OfDevice):
    """Child to parent: the outcomes of the assigned attempts, in their order."""

    kind: Literal["answer"] = "answer"
    job: str  # the first
    outcomes: tuple[Annotated[Succeeded | Failed | Stopped, Field(discriminator="kind")], ...]
    kernels: tuple[str, ...] = ()  # kernels that were launched without a fault
    faults: tuple[KernelFault, ...] = ()
    transfers: Transfers | None = None  # of all launches; None on the CPU and for private jobs, whose times leak


class Checking(Message):
    """Child to parent: the canary check of the device begins, between jobs or before one. `Checked` follows it."""

    kind: Literal["checking"] = "checking"
    began: float  # time.monotonic(), which is one clock for all processes of a machine


class Checked(OfDevice):
    """Child to parent: the canary check ended, and the device did not answer wrongly."""

    kind: Literal["checked"] = "checked"
    trouble: str | None = None  # why the canary could not run


class Lost(Message):
    """Child to parent: the device is lost, and the child process ends."""

    kind: Literal["lost"] = "lost"
    message: str
    kernel: str = ""
    wrong: bool = False  # the canary got a wrong answer


FromChild = Starting | Ready | Progressed | Stepped | Answer | Checking | Checked | Lost
_FROM_CHILD: TypeAdapter[FromChild] = TypeAdapter(Annotated[FromChild, Field(discriminator="kind")])

_TO_CHILD: TypeAdapter[Assignment | StopTask] = TypeAdapter(
    Annotated[Assignment | StopTask, Field(discriminator="kind")]
)


def send(pipe: Connection, message: Message) -> None:
    pipe.send_bytes(message.model_dump_json().encode())


def receive_orders(pipe: Connection) -> Orders:
    return Orders.model_validate_json(pipe.recv_bytes())


def receive_assignment(pipe: Connection) -> Assignment:
    """Wait for the parent's next assignment on the child's pipe; raises EOFError when the parent has gone."""
    while not isinstance(message := _TO_CHILD.validate_json(pipe.recv_bytes()), Assignment):
        pass  # it was for a task that has ended
    return message


def told_to_stop(pipe: Connection, job_id: str) -> bool:
    """Whether the parent has told the child, since the last call, that the task which it runs shall stop.

    Raises EOFError when the parent has gone.
    """
    return pipe.poll() and _TO_CHILD.validate_json(pipe.recv_bytes()) == StopTask(job=job_id)


def receive(pipe: Connection) -> FromChild:
    """The child's next message on the pipe to its parent; raises EOFError or OSError when the child has died."""
    return _FROM_CHILD.validate_json(pipe.recv_bytes())
