"""Tasks for the tests of tasks: a chain of digests, which is wrong where any step is left out or done twice, and one
whose outputs are files."""

from typing import Literal

from warpdesk_server.kernels.operation import Cost, Example, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.task import Task, TaskLimits


class ChainParams(Params):
    steps: int
    step_seconds: float = 0.0  # how long a step takes
    marker: str = ""  # a file that gets a line for each step: the process that did it, and its number
    gate: str = ""  # a step waits for this file's lock, which a test holds
    gate_at: int = 1  # in this step
    numbers: int = 4  # in the state
    die_at: int = 0  # a step that ends the process
    hang_at: int = 0  # a step that never ends


CHAIN = Task(
    name="chain",
    summary="A chain of digests",
    package="tests.workers.stepping",
    params=ChainParams,
    inputs=(),
    outputs=(Output("numbers", "the state at the end", "array"), Output("steps", "how many there were", "value")),
    example=Example({"steps": 3}),
    cost=lambda params, inputs: Cost(bytes=8 * params.numbers),
    limits=lambda params, inputs: TaskLimits(
        step_seconds=2.0 if params.hang_at else 60.0, seconds=None, checkpoint_bytes=1 << 20, result_bytes=1 << 20
    ),
    randomness="seed",
)


class PackParams(Params):
    size: int = 1 << 20  # of the model, in bytes
    way: Literal["in place", "bytes", "elsewhere", "text", "not at all"] = "in place"
    elsewhere: str = ""
    gate: str = ""  # the second half of the model waits for this file's lock


PACK = Task(
    name="pack",
    summary="Two files, one of them empty",
    package="tests.workers.stepping",
    params=PackParams,
    inputs=(),
    outputs=(
        Output("model", "the bytes 0 to 250 in turn", "file", "model.bin", "application/octet-stream"),
        Output("size", "how many there are", "value"),
        Output("notes", "nothing", "file", "notes.html", "text/html"),
    ),
    example=Example({}),
    cost=lambda params, inputs: Cost(bytes=params.size),
    limits=lambda params, inputs: TaskLimits(60.0, None, checkpoint_bytes=1 << 16, result_bytes=1 << 20),
)
