"""What a device costs, by its name."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from warpdesk_server.workers.prices import parse, price_of
from warpdesk_server.workers.settings import WorkerSettings

PRICES = {"NVIDIA H100": 3.0, "NVIDIA H100 PCIe": 2.0, "AMD EPYC": 0.4, "cpu": 0.1}


@pytest.mark.parametrize(
    ("backend", "device", "price"),
    [
        ("gpu", "NVIDIA H100 80GB HBM3", 3.0),
        ("gpu", "NVIDIA H100 PCIe", 2.0),
        ("gpu", "NVIDIA A100-SXM4-80GB", None),
        ("gpu", "cpu", 0.1),  # a device may be called anything
        ("cpu", "AMD EPYC 9654", 0.4),
        ("cpu", "Intel(R) Xeon(R)", 0.1),
    ],
)
def test_the_longest_beginning_of_a_name_has_the_price(backend: str, device: str, price: float | None) -> None:
    assert price_of(PRICES, backend, device) == price


def test_without_a_table_nothing_has_a_price() -> None:
    assert price_of({}, "cpu", "AMD EPYC 9654") is None
    assert WorkerSettings().prices == {}


def test_the_environment_tells_prices_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPDESK_PRICES", '{"NVIDIA H100": 3, "cpu": 0}')
    assert WorkerSettings().prices == {"NVIDIA H100": 3.0, "cpu": 0.0}
    monkeypatch.setenv("WARPDESK_PRICES", " ")
    assert WorkerSettings().prices == {}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            "NVIDIA H100=3",
            'it is no JSON .* dollars per hour by device are given as {"NVIDIA H100": 2.95, "cpu": 0.08}',
        ),
        ("[3]", "it is no JSON object"),
        ('{"": 3}', "one of these has no name"),
        ('{"cpu": "3"}', "the price of 'cpu' is '3': dollars per hour are a number of 0 or more"),
        ('{"cpu": -1}', "the price of 'cpu' is -1"),
        ('{"cpu": true}', "the price of 'cpu' is True"),
        ('{"cpu": NaN}', "the price of 'cpu' is nan"),
        ('{"cpu": Infinity}', "the price of 'cpu' is inf"),
        ({"cpu": math.inf}, "the price of 'cpu' is inf"),
    ],
)
def test_a_table_that_is_none_is_refused_with_a_sentence(
    table: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse(table)
    if isinstance(table, str):
        monkeypatch.setenv("WARPDESK_PRICES", table)
        with pytest.raises(ValidationError, match=sentence):
            WorkerSettings()
