"""What a worker's parent and its child say to each other: JSON messages over one socket pair."""

from multiprocessing.connection import Connection
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from workers.protocol import DeviceReport, Failed, FailedExample, JobRequest, Message, Succeeded

LOST_DEVICE = 77  # the child's exit code after it reported a lost device


class Assignment(Message):
    """Parent to child: run this attempt."""

    request: JobRequest
    attempt: int
    keep_off_gpu: str | None = None


Step = Literal["looking for a GPU", "warming up on the GPU", "warming up on the CPU"]


class Starting(Message):
    """Child to parent: what I do next; when I die of it, this is what it was."""

    kind: Literal["starting"] = "starting"
    step: Step


class Ready(Message):
    """Child to parent: every operation was tried once on this device, and these failed."""

    kind: Literal["ready"] = "ready"
    device: DeviceReport
    seconds: float
    failed: tuple[FailedExample, ...] = ()


class Answer(Message):
    """Child to parent: the outcome of the attempt that was assigned."""

    kind: Literal["answer"] = "answer"
    job: str
    attempt: int
    outcome: Annotated[Succeeded | Failed, Field(discriminator="kind")]


class Lost(Message):
    """Child to parent: the device is gone, and so am I."""

    kind: Literal["lost"] = "lost"
    message: str


FromChild = Starting | Ready | Answer | Lost
_FROM_CHILD: TypeAdapter[FromChild] = TypeAdapter(Annotated[FromChild, Field(discriminator="kind")])


def send(pipe: Connection, message: Message) -> None:
    pipe.send_bytes(message.model_dump_json().encode())


def receive_assignment(pipe: Connection) -> Assignment:
    """Wait for work; raises EOFError when the parent has gone."""
    return Assignment.model_validate_json(pipe.recv_bytes())


def receive(pipe: Connection) -> FromChild:
    """What the child said; raises EOFError or OSError when it has died."""
    return _FROM_CHILD.validate_json(pipe.recv_bytes())
