"""Operations whose time is known: each backend turns a clock by what it is said to take, and computes nothing."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.operation import Backend, Cost, Example, Operation, Output
from warpdesk_server.kernels.params import Params

Truth = Callable[[float], float]  # seconds for so much work


@dataclass
class Clock:
    """The machine: what each backend takes, and by how much a measurement is off (the deviation of its logarithm)."""

    truth: dict[Backend, Truth]
    noise: float = 0.0
    now: float = 0.0
    dice: Random = field(default_factory=lambda: Random(0))

    def __call__(self) -> float:
        return self.now

    def work(self, backend: Backend, work: float) -> None:
        self.now += self.truth[backend](work) * math.exp(self.dice.gauss(0, self.noise))


CLOCK = Clock({})


class SizeParams(Params):
    size: int


def _cost(params: SizeParams, inputs: Mapping[str, ArrayInfo]) -> Cost:
    return Cost(bytes=8, work=float(params.size))


CRUNCH = Operation(
    "crunch",
    "Take as long as the clock is told.",
    "tests.workers.child.timed",
    SizeParams,
    (),
    (Output("size", "as given", "value"),),
    Example({"size": 1000}),
    _cost,
)
MURMUR = Operation(
    "murmur",
    "The same with a key.",
    "tests.workers.child.timed",
    SizeParams,
    (),
    (Output("size", "as given", "value"),),
    Example({"size": 1000}),
    _cost,
    randomness="private",
)
OPERATIONS = {"crunch": CRUNCH, "murmur": MURMUR}
