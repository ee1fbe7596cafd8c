"""Tiers of the tests. What a test needs is read from its parameters, its fixtures and the code of `tests` it calls.

`service`: it starts processes of the service or an API of its own, or uses a PostgreSQL. `emulated`: it runs our
kernels on the emulated GPU. `slow`: it starts other processes that load every kernel, collect every test, run a
command, RQ or promtool; has processes killed at each step of a ledger; plays rounds of secure aggregation; draws
millions of numbers; or plays many histories against a model.
"""

from collections.abc import Iterator
from functools import cache
from types import CodeType, ModuleType
from typing import Any

import pytest

# The marks of whoever uses these, by module and name.
MARKS = {
    ("tests.app.conftest", "live"): "service",
    ("tests.chaos.world", "World"): "service",
    ("tests.conftest", "serve"): "service",
    ("tests.deploy.image", "Builder"): "service",
    ("tests.deploy.test_compose", "Machine"): "service",
    ("tests.deploy.test_fly", "answers"): "service",
    ("tests.workers.conftest", "Desk"): "service",
    ("warpdesk_server.benchmarks.postgres", "postgres"): "service",
    ("warpdesk_server.service.processes", "spawn"): "service",
    ("tests.cudasim.build", "compile_source"): "emulated",
    ("tests.cudasim.build", "load"): "emulated",
    ("tests.cudasim.device", "EmulatedDevice"): "emulated",
    ("tests.cudasim.sanitized", "run_sanitized"): "emulated",
    ("hypothesis.stateful", "run_state_machine_as_test"): "slow",
    ("tests.app.rounds.test_rounds", "Played"): "slow",
    ("tests.benchmarks.test_gpu", "results"): "slow",
    ("tests.deploy.test_alerts", "promtool"): "slow",
    ("tests.kernels.dp_noise.distributions", "moments_fit"): "slow",
    ("tests.kernels.dp_noise.distributions", "passes"): "slow",
    ("tests.kernels.gpu.test_gpu_run", "run"): "slow",
    ("tests.kernels.monte_carlo.test_reliability", "drawn"): "slow",
    ("tests.kernels.processors", "printed"): "slow",
    ("tests.privacy.processes", "Processes"): "slow",
    ("tests.warpdesk_server.test_cli", "warpdesk"): "slow",
    ("tests.workers.child.test_cost", "sweep"): "slow",
    ("tests.workers.child.test_warmup", "numba_usage"): "slow",
    ("tests.workers.queue.test_rq", "Plain"): "slow",
    ("warpdesk_server.workers.child.warmup", "start_second_compiler"): "slow",
}
# A fixture of the whole session costs each of its tests little.
_SHARED = {"running"}
# The emulated GPU in milliseconds: its memory, its copies and lanes, and short kernels of one family.
_LIGHT = {
    "tests.cudasim.test_device",
    "tests.kernels.federated_average.test_federated_average",
    "tests.kernels.gpu.test_chunks",
    "tests.kernels.gpu.test_staging",
    "tests.kernels.secure_aggregation.test_secure_aggregation",
    "tests.kernels.vector.test_vector",
}


def mark(item: pytest.Function) -> None:
    """Give a test the marks of all that it uses."""
    test = getattr(item.function, "hypothesis", None)
    used = {item.function if test is None else test.inner_test}
    fixtures = item._fixtureinfo.name2fixturedefs.items()
    used |= {definitions[-1].func for name, definitions in fixtures if name not in _SHARED}
    if hasattr(item, "callspec"):
        used |= {kind for value in item.callspec.params.values() for kind in kinds(value)}
    light = {"emulated"} if item.module.__name__ in _LIGHT else set()
    for name in set().union(*map(marks, used)) - light:
        item.add_marker(name)


def kinds(value: Any) -> Iterator[type]:
    """The classes of a parameter of a test, and of what its attributes hold."""
    yield type(value)
    yield from map(type, getattr(value, "__dict__", {}).values())


@cache
def marks(value: Any) -> frozenset[str]:
    """The marks of a function or class, and of what it uses, however far down."""
    found, visited, left = set(), set(), [value]
    while left:
        value = left.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if (name := MARKS.get((value.__module__, value.__qualname__))) is not None:
            found.add(name)
        elif value.__module__.startswith("tests."):
            left += _used(value)
    return frozenset(found)


def _used(value: Any) -> Iterator[Any]:
    """The functions and classes that a function or class names, and the bases of a class."""
    if isinstance(value, type):
        yield from value.__bases__
    members = vars(value).values() if isinstance(value, type) else [value]
    for member in members:
        member = getattr(member, "fget", getattr(member, "__func__", member))
        function = getattr(member, "__wrapped__", member)
        if (code := getattr(function, "__code__", None)) is None:
            continue
        names = set(_names(code))
        for name in names:
            named = function.__globals__.get(name)
            if isinstance(named, ModuleType) and named.__name__.startswith("tests."):
                yield from (vars(named)[other] for other in names if _is_code(vars(named).get(other)))
            elif _is_code(named):
                yield named


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_code(value: Any) -> bool:
    """Whether it is a function, also a cached one, or a class."""
    return callable(value) and hasattr(value, "__qualname__") and isinstance(getattr(value, "__module__", None), str)
