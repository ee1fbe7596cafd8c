"""The clients' method for each operation: written from the catalogue, sent as it is given, answered with its type."""

import asyncio
import inspect
import runpy
from collections.abc import Mapping
from typing import Any, get_type_hints

import numpy as np
import pytest

from examples.prices import sp500, stocks
from tests.conftest import ROOT, Service
from warpdesk import AsyncClient, Client, RequestRefused, Result, ta
from warpdesk.async_operations import AsyncOperations
from warpdesk.operations import BollingerResult, MacdResult, Operations
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.operation import Operation

pytestmark = pytest.mark.timeout(500)
EACH = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


class Sent(Operations):
    """A client that keeps what its methods send."""

    def run(self, operation: str, *, params: Mapping[str, Any] | None = None, **fields: Any) -> Result:
        self.sent = operation, dict(params or {}), fields
        return Result({}, None, None)  # type: ignore[arg-type]


def test_the_methods_are_those_of_the_catalogue() -> None:
    for path, text in runpy.run_path(str(ROOT / "clients/python/write_methods.py"))["FILES"].items():
        assert path.read_text() == text(), "`make indicators` writes it anew"
    for client, methods in ((Client, Operations), (AsyncClient, AsyncOperations)):
        assert OPERATIONS.keys() <= vars(methods).keys()
        assert not OPERATIONS.keys() & vars(client).keys()  # where it would hide the operation's


@EACH
def test_a_method_sends_an_example_as_it_is_and_the_defaults_of_the_operation(operation: Operation) -> None:
    client, shown = Sent(), {each.name: each.shown for each in operation.inputs}
    inputs = {shown[name]: np.array(each["data"], each["dtype"]) for name, each in operation.example.inputs.items()}
    getattr(client, operation.name)(**inputs, **operation.example.params, backend="cpu", timeout=3.0)
    name, fields, options = client.sent
    assert (name, options) == (operation.name, {"backend": "cpu", "timeout": 3.0})
    assert {each: fields.pop(each) for each in inputs} == inputs

    infos = {
        name: ArrayInfo(array.dtype.name, array.shape)
        for name, array in ((name, inputs[shown[name]]) for name in operation.example.inputs)
    }
    assert operation.validate(fields, infos) == operation.validate(operation.example.params, infos)


@EACH
def test_both_clients_have_the_same_arguments_and_results(operation: Operation) -> None:
    plain, awaited = getattr(Operations, operation.name), getattr(AsyncOperations, operation.name)
    assert inspect.signature(plain) == inspect.signature(awaited)
    assert inspect.iscoroutinefunction(awaited)
    result = get_type_hints(plain)["return"]
    outputs = {each.name for each in operation.outputs}
    assert outputs - set(result.__annotations__) <= {"values", "job"}  # methods and attributes of every result


def test_a_method_gives_what_run_gives(client: Client, service: Service) -> None:
    _, _, closes = stocks()
    closes = closes[:3, :80]

    async def awaited() -> MacdResult:
        async with AsyncClient(service.url) as other:
            return await other.macd(closes, fast=5, slow=10, signal=4)

    named = client.run("macd", close=closes, fast=5, slow=10, signal=4)
    for result in (client.macd(close=closes.tolist(), fast=5, slow=10, signal=4), asyncio.run(awaited())):
        assert isinstance(result, MacdResult)
        assert result.signal.tobytes() == result["signal"].tobytes() == named["signal"].tobytes()
        assert result.job.operation == "macd"
    uploaded = client.upload(closes)
    bands = client.bollinger(uploaded, period=5, backend="cpu", priority="realtime", idempotency_key="bands")
    assert isinstance(bands, BollingerResult)
    assert bands.upper.tobytes() == client.run("bollinger", close=closes, period=5)["upper"].tobytes()
    assert (bands.job.priority, bands.job.backend, bands.provenance.backend) == ("realtime", "cpu", "cpu")
    again = client.bollinger(uploaded, period=5, backend="cpu", priority="realtime", idempotency_key="bands")
    assert again.job.id == bands.job.id
    assert client.sum([1.0, 2.0, 3.5])["sum"] == 6.5


def test_a_job_may_be_cut_for_several_workers(client: Client) -> None:
    """The option is `shards`, since operations have a parameter `width`."""
    _, _, closes = stocks()
    closes = closes[:3, :80]
    cut = client.bollinger(closes, period=5, width=1.5, shards=3)
    whole = client.bollinger(closes, period=5, width=1.5, shards=1)
    assert cut.upper.tobytes() == whole.upper.tobytes()
    assert whole.job.shards is None
    assert cut.job.shards is not None
    assert (cut.job.shards.count, cut.job.shards.cpu, cut.job.shards.gpu) == (3, 3, 0)
    with pytest.raises(RequestRefused, match="width 2: this job of bollinger has one part"):
        client.submit("bollinger", close=closes[0], period=5, shards=2)


def test_an_input_may_be_one_number_for_all_where_the_operation_has_a_parameter_of_its_name(client: Client) -> None:
    market = {"option": "call", "rate": 0.05, "dividend": 0, "maturity": np.float64(0.5)}
    strikes, uploaded = np.array([90.0, 110.0]), client.upload(np.array([0.2, 0.3]))
    book = client.black_scholes(spot=100.0, strike=strikes, volatility=uploaded, **market)
    other = client.black_scholes(spot=[100.0, 100.0], strike=strikes, volatility=uploaded, **market)
    assert book.price.shape == (2,)
    assert book.price.tobytes() == other.price.tobytes()
    implied = client.implied_volatility(spot=100.0, strike=strikes, price=book.price, **market)
    assert implied.volatility == pytest.approx([0.2, 0.3], rel=1e-13)
    assert implied.status.tolist() == [0, 0]
    with pytest.raises(RequestRefused, match="black_scholes_merton needs strike: one number in params or an array"):
        client.black_scholes(spot=100.0, volatility=0.2, **market)


def test_an_expression_is_a_method_too(client: Client) -> None:
    close = sp500().close[:60]
    result = client.expression(**ta.expression(fast=ta.ema(ta.close, 5)), close=close)
    assert result["fast"].tobytes() == client.ema(close, period=5).ema.tobytes()


def test_what_is_wrong_is_said_as_by_run(client: Client) -> None:
    with pytest.raises(RequestRefused, match="period should be at least 2, got 1"):
        client.rsi([1.0, 2.0, 3.0], period=1)
    with pytest.raises(RequestRefused, match="there is no field 'fst' here; there are fast, slow, signal"):
        client.macd([1.0, 2.0, 3.0], fst=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'period'"):
        client.rsi([1.0, 2.0, 3.0])  # type: ignore[call-arg]
