"""The builder of a plan: one job of many operations, in which outputs of earlier steps are inputs of later ones.

plan = Plan()
rsi = plan.step("rsi", close=plan.input("prices"), period=14)
smooth = plan.step("ema", close=rsi["rsi"], period=9)
result = client.run("plan", **plan.params(rsi=rsi["rsi"], now=smooth["ema"].last(1)), prices=prices)
"""

from dataclasses import dataclass
from typing import Any

from warpdesk.arrays import as_param


@dataclass(frozen=True)
class Source:
    """What a step of a plan reads: an input of the plan, or an output of an earlier step."""

    name: str
    kept: int | None = None

    def last(self, count: int) -> "Source":
        """The last numbers alone along the last axis, for an output of the plan."""
        return Source(self.name, count)


@dataclass(frozen=True)
class Step:
    """A step of a plan. `step["rsi"]` is an output of it."""

    id: str

    def __getitem__(self, output: str) -> Source:
        return Source(f"{self.id}.{output}")


class Plan:
    """The steps of a plan, in the order in which they run."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []

    def input(self, name: str) -> Source:
        """An input of the plan, which `run` is given by this name."""
        return Source(name)

    def step(self, operation: str, *, id: str | None = None, seed: int | None = None, **fields: Any) -> Step:  # noqa: A002 (as in HTTP)
        """Add a step. `fields` are the operation's inputs, as sources, and its parameters."""
        chosen = f"{operation}_{len(self._steps) + 1}" if id is None else id
        inputs = {name: value for name, value in fields.items() if isinstance(value, Source)}
        if part := next((name for name, source in inputs.items() if source.kept is not None), None):
            raise ValueError(f"{part} of {chosen} is {inputs[part].name}.last(...): a step reads whole arrays")
        params = {name: as_param(name, value) for name, value in fields.items() if name not in inputs}
        written: dict[str, Any] = {"id": chosen, "operation": operation, "params": params}
        written["inputs"] = {name: source.name for name, source in inputs.items()}
        if seed is not None:
            written["seed"] = seed
        self._steps.append(written)
        return Step(chosen)

    def params(self, **outputs: Source) -> dict[str, Any]:
        """The parameters of the operation `plan`, with these outputs."""
        wanted = {
            name: {"from": source.name} if source.kept is None else {"from": source.name, "last": source.kept}
            for name, source in outputs.items()
        }
        return {"steps": list(self._steps), "outputs": wanted}
