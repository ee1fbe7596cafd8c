"""A task for the tests of tasks: a chain of digests, which is wrong where any step is left out or done twice."""

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
