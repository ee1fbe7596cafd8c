"""The marks of tests/tiers.py: what starts services, runs the emulated GPU or is slow has them, and nothing else."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.cudasim import device
from tests.cudasim.device import EmulatedDevice
from tests.tiers import MARKS, kinds, marks
from tests.workers.conftest import Desk


class Slower(EmulatedDevice):
    pass


class Holder:
    @property
    def device(self) -> EmulatedDevice:
        return EmulatedDevice()


def through_a_helper() -> Any:
    return Slower()


@cache
def kept() -> Any:
    return through_a_helper()


def in_a_function_within() -> Any:
    return [lambda: Holder()]


def by_its_module() -> Any:
    return device.EmulatedDevice()


def both(desk: Desk) -> Any:
    with conftest.serve(desk.home):
        return kept()


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (through_a_helper, {"emulated"}),
        (kept, {"emulated"}),
        (in_a_function_within, {"emulated"}),
        (by_its_module, {"emulated"}),
        (both, {"service", "emulated"}),
        (Desk.wait, set()),
        (len, set()),
    ],
)
def test_a_mark_is_found_however_far_down_what_gives_it_is_used(used: Any, expected: set[str]) -> None:
    assert marks(used) == expected


def test_a_device_among_the_attributes_of_a_parameter_is_found() -> None:
    assert set().union(*map(marks, kinds(SimpleNamespace(device=Slower())))) == {"emulated"}
    assert set().union(*map(marks, kinds(SimpleNamespace(device=None)))) == set()


@pytest.mark.parametrize(("module", "name"), MARKS, ids=lambda part: part)
def test_what_gives_a_mark_is_where_the_table_says(module: str, name: str) -> None:
    assert isinstance(getattr(import_module(module), name), Callable)
