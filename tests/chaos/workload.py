"""What clients ask for: small requests of real operations, each with an answer of its own, so that none can stand for
another."""

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from examples import prices
from tests.chaos.operations import POISON


@dataclass(frozen=True)
class Request:
    """The body of a submission but for what is said beside it (priority, deadline)."""

    name: str
    body: Mapping[str, Any]

    @property
    def alone(self) -> "Request":
        """The same, computed by one worker if its width says otherwise."""
        return Request(self.name, {**self.body, "width": 1}) if "width" in self.body else self

    @property
    def without_width(self) -> "Request":
        """The same for a release that knows no width."""
        return Request(self.name, {name: value for name, value in self.body.items() if name != "width"})


@dataclass(frozen=True)
class Submission:
    number: int
    request: Request
    key: str | None = None  # Idempotency-Key
    priority: str = "batch"
    deadline_s: float | None = None
    cancel: bool = False  # its client changes its mind at once
    wait: bool = False  # its client waits for the answer
    ends: tuple[str, ...] = ("succeeded",)

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {**self.request.body, "priority": self.priority}
        return body if self.deadline_s is None else {**body, "deadline_s": self.deadline_s}


@dataclass
class Workload:
    """Submissions from a seed, over `kinds` different requests in all. `name` makes its Idempotency-Keys its own.

    Some ask for a width, if all that serve them know one.
    """

    name: str
    seed: int
    kinds: int
    widths: bool = True
    requests: tuple[Request, ...] = field(init=False)

    def __post_init__(self) -> None:
        requests = _requests(self.kinds)
        self.requests = tuple(requests if self.widths else (request.without_width for request in requests))

    def submissions(self) -> Iterator[Submission]:
        """Without end. One in ten keys is sent again later, as by a client that forgot what it was told."""
        chance = random.Random(self.seed)
        sent: list[Submission] = []
        number = 0
        while True:
            number += 1
            if sent and chance.random() < 0.1:
                before = sent[chance.randrange(len(sent))]
                yield Submission(number, before.request, before.key, before.priority, before.deadline_s)
                continue
            one = Submission(
                number,
                self.requests[chance.randrange(len(self.requests))],
                key=f"{self.name}-{number}" if chance.random() < 0.9 else None,
                priority=chance.choices(("realtime", "batch", "research"), (1, 6, 3))[0],
                deadline_s=3600.0 if chance.random() < 0.05 else None,
                cancel=chance.random() < 0.03,
                wait=chance.random() < 0.1,
            )
            if one.key is not None and not one.cancel:
                sent = [*sent[-100:], one]
            yield one


def _requests(kinds: int) -> Iterator[Request]:
    """In turn of each operation, over other numbers each time: alike as batches go, with answers that differ."""
    close = prices.sp500().close
    random_numbers = np.random.default_rng(11)
    for number in range(kinds):
        if number % 8 == 7:
            yield _wide(number // 8)
            continue
        at = number - number // 8
        kind, turn = at % 7, at // 7
        series = close[turn : turn + 120].tolist()
        vector = random_numbers.normal(size=64).round(6).tolist()
        match kind:
            case 0:
                yield _request("rsi", f"rsi {turn}", {"period": 14}, prices=series)
            case 1:
                yield _request("sma", f"sma {turn}", {"period": 10}, prices=series)
            case 2:
                matrix = np.reshape(vector, (8, 8)).tolist()
                yield _request("matmul", f"matmul {turn}", {}, a=matrix, b=matrix)
            case 3:
                yield _option(turn)
            case 4:
                yield _request("axpy", f"axpy {turn}", {"alpha": 2.0}, x=vector, y=vector[::-1])
            case 5:
                yield _request("sum", f"sum {turn}", {}, x=vector)
            case 6:
                yield doubling(f"double {turn}", [abs(value) for value in vector], seconds=0.2)


def doubling(name: str, values: list[float], seconds: float = 0.0, memory: int = 0) -> Request:
    return _request("double", name, {"seconds": seconds, "memory": memory}, values=values)


def task(turn: int, steps: int, step_seconds: float) -> Request:
    """A task of so many steps, whose answer depends on each of them."""
    request = _request("chain", f"chain {turn}", {"steps": steps, "step_seconds": step_seconds})
    return Request(request.name, {**request.body, "seed": turn})


def poison(numbers: int) -> Request:
    return doubling("poison", [POISON] * numbers)


def release(name: str, budget: str) -> Request:
    """A noisy sum that costs a tenth of epsilon."""
    params = {
        "mechanism": "discrete_laplace", "mode": "records", "query": "sum", "epsilon": "0.1",
        "clip": {"norm": "linf", "bound": "100"}, "neighbouring": "add_remove", "budget": budget,
    }  # fmt: skip
    return _request("dp_noise", name, params, values=[12.5, 99.0, 3.25])


def _option(turn: int, paths: int = 2000, steps: int = 4) -> Request:
    market = {"spot": 100.0, "strike": 100.0, "volatility": 0.2, "maturity": 1.0}
    params = {"payoff": "european", "option": "call", **market, "steps": steps, "paths": paths}
    request = _request("monte_carlo", f"monte_carlo {turn}", params)
    return Request(request.name, {**request.body, "seed": turn})


def _wide(turn: int) -> Request:
    """A job in two to eight shards: each second one a simulation that takes a moment, the others prices of assets."""
    width = 2 + turn % 7
    if turn % 2:
        closes = prices.sp500().close
        rows = [closes[turn + asset : turn + asset + 60].tolist() for asset in range(16)]
        request = _request("rsi", f"wide rsi {turn}", {"period": 14}, prices=rows)
        return Request(request.name, {**request.body, "width": width})
    option = _option(turn, paths=1_000_000, steps=64)
    return Request(f"wide {option.name}", {**option.body, "width": width})


def _request(operation: str, name: str, params: dict[str, Any], **inputs: Any) -> Request:
    given = {key: {"data": data, "dtype": "float64"} for key, data in inputs.items()}
    return Request(name, {"operation": operation, "params": params, "inputs": given})


def digest(value: Any) -> str:
    """The same for the same JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
