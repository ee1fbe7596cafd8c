"""Amounts in a body keep the text that was written, wherever a parameter is an amount; other numbers stay numbers."""

import json
from typing import Any

import pytest

from warpdesk_server.app.kit.amounts import Amounts
from warpdesk_server.kernels.catalogue import OPERATIONS

AMOUNTS = Amounts(OPERATIONS)


def rewritten(operation: str, params: str) -> Any:
    body = f'{{"operation": "{operation}", "params": {params}}}'.encode()
    read = AMOUNTS.of_job(json.loads(body), body)
    assert isinstance(read, dict)
    return read["params"]


@pytest.mark.parametrize("text", ["0.1", "1e-1", "0.10000000000000000000000000000001", "1.50"])
def test_a_number_where_an_amount_belongs_is_its_text(text: str) -> None:
    from decimal import Decimal

    params = rewritten("dp_noise", f'{{"epsilon": {text}, "clip": {{"norm": "l1", "bound": {text}}}}}')
    assert Decimal(params["epsilon"]) == Decimal(params["clip"]["bound"]) == Decimal(text)


def test_numbers_that_are_no_amounts_stay_as_they_are() -> None:
    params = '{"spot": 100.5, "strike": 1e2, "steps": 3}'
    assert rewritten("monte_carlo", params) == json.loads(params)


def test_what_is_no_parameter_is_left_for_the_check_to_refuse() -> None:
    assert rewritten("dp_noise", '{"unheard": {"of": [0.5]}, "epsilon": "1"}') == {
        "unheard": {"of": [0.5]},
        "epsilon": "1",
    }


@pytest.mark.parametrize("body", ["[]", "3", '{"operation": 4}', '{"operation": "dp_noise", "params": [0.5]}', "{}"])
def test_a_body_that_is_no_submission_is_left_alone(body: str) -> None:
    assert AMOUNTS.of_job(json.loads(body), body.encode()) == json.loads(body)
