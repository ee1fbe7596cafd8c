"""Digests of what the CPU answers to every case whose bytes are the same everywhere.

`python -m tests.kernels.digests` writes them to `digests.json`. A change of one is a change of an answer that users
were given: it needs a line in the CHANGELOG.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.kernels.families import cases, families, on_the_cpu_alone
from tests.kernels.parity import Answer, Case

RECORDED = Path(__file__).with_name("digests.json")


def exact_cases(family: str) -> Iterator[tuple[str, Case]]:
    """The cases of a family that have no tolerance, each with a name of its own."""
    names = Counter[str]()
    for case in cases(family):
        if case.rtol is None:
            name = f"{case.operation}: {case}"
            names[name] += 1
            yield (name if names[name] == 1 else f"{name} ({names[name]})"), case


def digest(answer: Answer) -> str:
    """Of names, dtypes, shapes and bytes. Two NaNs are one: their payload is the hardware's choice."""
    found = hashlib.sha256()
    for name, value in answer.items():
        if not isinstance(value, np.ndarray):
            found.update(f"{name} {value!r}\n".encode())
            continue
        array = np.ascontiguousarray(value)
        if array.dtype.kind == "f":
            array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()[:16]


def digests(family: str) -> dict[str, list[str]]:
    """Of the inputs and of the answer, by case."""
    return {name: [digest(case.inputs()), digest(case.run())] for name, case in exact_cases(family)}


if __name__ == "__main__":
    every = {family: digests(family) for family in sorted([*families(), *on_the_cpu_alone()])}
    RECORDED.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n")
