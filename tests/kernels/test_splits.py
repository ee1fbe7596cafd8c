"""An answer has the same bytes however the job is split, and however often memory runs out on the way.

For every operation: random requests, cut into chunks so small that there are several; a random number of them resident,
in one lane or two; allocations that fail, from the n-th on and k times; and devices that launch in other shapes. Each
answer is compared with the one in one piece.
"""

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.kernels.backtest.cases import CROSS
from tests.kernels.backtest.cases import market as candles
from tests.kernels.bars.cases import smaller
from tests.kernels.basket_options.cases import inputs as basket
from tests.kernels.cross_section.cases import market
from tests.kernels.parity import Case, assert_same
from tests.kernels.portfolio.cases import matrices
from tests.kernels.remembering import RememberingDevice
from tests.kernels.risk.cases import covariance, forecasts, series, weighted_book
from tests.kernels.tridiagonal.cases import systems
from tests.kernels.vanilla_options.cases import MODELS, book, early_book, quotes
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.kernels.gpu import chunks
from warpdesk_server.kernels.gpu.faults import OutOfMemory
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.operation import Grid, Operation

SCHEDULES = 10_000  # answered ones, of all operations together
REQUESTS = 6  # of each operation
Random = np.random.Generator

# How a family's chunks are made small: a constant of its spec that changes no byte, and what to draw it from.
SMALL: dict[str, tuple[str, tuple[int, ...]]] = {
    "warpdesk_server.kernels.backtest": ("CHUNK", (500, 800, 1_200)),
    "warpdesk_server.kernels.bars": ("CHUNK", (1, 300, 1_000)),
    "warpdesk_server.kernels.basket_options": ("CHUNK", (256, 512)),
    "warpdesk_server.kernels.cross_section": ("CHUNK", (200, 600, 1_500)),
    "warpdesk_server.kernels.dp_noise": ("CHUNK", (16, 64)),
    "warpdesk_server.kernels.federated_average": ("CHUNK", (16, 64)),
    "warpdesk_server.kernels.indicators": ("CHUNK_BARS", (1, 300, 1_000)),
    "warpdesk_server.kernels.matmul": ("PANEL_BYTES", (3_000, 9_000)),
    "warpdesk_server.kernels.monte_carlo": ("CHUNK", (256, 512)),
    "warpdesk_server.kernels.portfolio": ("CHUNK", (1, 100, 300)),
    "warpdesk_server.kernels.risk": ("CHUNK", (200, 600)),
    "warpdesk_server.kernels.secure_aggregation": ("CHUNK", (64, 200)),
    "warpdesk_server.kernels.shamir": ("CHUNK", (1_024, 4_096)),
    "warpdesk_server.kernels.vanilla_options": ("CHUNK", (16, 40)),
    "warpdesk_server.kernels.tridiagonal": ("CHUNK", (40, 150)),
    "warpdesk_server.kernels.vector": ("CHUNK", (64, 256, 1_000)),
}


def _floats(random: Random, *shape: int) -> "np.ndarray[Any, Any]":
    return random.standard_normal(shape).astype(random.choice(["float64", "float32"]))


def _matmul(random: Random) -> dict[str, Any]:
    m, k, n = (int(size) for size in random.integers(1, 80, 3))
    batch = [(), (int(random.integers(1, 6)),)]
    a, b = batch[random.integers(2)], batch[random.integers(2)]
    first = _floats(random, *a, m, k)
    return {"algorithm": "kernel", "a": first, "b": random.standard_normal((*b, k, n)).astype(first.dtype)}


def _prices(random: Random, nan: bool = True) -> "np.ndarray[Any, Any]":
    shape = (int(random.integers(3, 13)), int(random.integers(50, 300)))
    if random.random() < 0.4:  # rows of several tiles
        shape = (int(random.integers(1, 3)), int(random.integers(4_100, 9_000)))
    prices = 100 * np.exp(np.cumsum(random.normal(0, 1e-2, shape), axis=-1))
    if nan and random.random() < 0.5:
        prices[random.random(shape) < 0.05] = np.nan
    return prices.astype(random.choice(["float64", "float32"]))


def _indicator(*conventions: str) -> Callable[[Random], dict[str, Any]]:
    def draw(random: Random) -> dict[str, Any]:
        chosen = {"convention": str(random.choice(conventions))} if conventions else {}
        policy = str(random.choice(["window", "skip", "ffill"]))
        return {"period": int(random.integers(2, 30)), "nan_policy": policy, **chosen, "prices": _prices(random)}

    return draw


def _monte_carlo(random: Random) -> dict[str, Any]:
    payoff = str(random.choice(["european", "asian_arithmetic", "asian_geometric", "barrier_up_out", "lookback_fixed"]))
    market = {"spot": 100.0, "strike": 101.0, "rate": 0.05, "volatility": 0.3, "maturity": 0.75}
    barrier = {"barrier": 120.0} if payoff.startswith("barrier") else {}
    size: dict[str, Any] = {"steps": int(random.integers(1, 5)), "paths": int(random.integers(300, 2_000))}
    if random.random() < 0.3:
        size |= {"paths": 4_096, "sampling": "sobol"}
    return {"payoff": payoff, "option": "call", **market, **barrier, **size, "seed": int(random.integers(1 << 60))}


def _basket_option(random: Random) -> dict[str, Any]:
    market = {"option": "call", "strike": 100.0, "rate": 0.05, "maturity": 0.75}
    given = {"payoff": str(random.choice(["weighted_sum", "best_of"])), **market, **basket(int(random.integers(1, 4)))}
    if random.random() < 0.5:
        given |= {"exercise": "american", "steps": 3, "policy_paths": int(random.integers(100, 600))}
    return {**given, "paths": int(random.integers(700, 2_000)), "seed": int(random.integers(1 << 60))}


def _dp_noise(random: Random) -> dict[str, Any]:
    laplace = random.random() < 0.5
    noise = (
        {"mechanism": "discrete_laplace", "epsilon": "1"} if laplace else {"mechanism": "discrete_gaussian", "rho": "1"}
    )
    mode: dict[str, Any] = {"mode": "aggregate", "sensitivity": {"norm": "l1" if laplace else "l2", "value": "1"}}
    values = random.normal(0, 1, (int(random.integers(2, 60)), int(random.integers(1, 40))))
    if random.random() < 0.7:
        clip = {"norm": str(random.choice(["linf", "l1", "l2"])), "bound": "1.5"}
        mode = {
            "mode": "records",
            "query": str(random.choice(["sum", "mean"])),
            "neighbouring": "add_remove",
            "clip": clip,
        }
        if random.random() < 0.3:
            mode |= {"query": "identity", "neighbouring": "replace_one"}
        elif random.random() < 0.3:
            values, bins = (
                values.reshape(-1),
                {"edges": tuple(np.sort(random.normal(0, 1, int(random.integers(2, 40)))))},
            )
            mode = {"mode": "records", "query": "histogram", "neighbouring": "add_remove", "bins": bins}
    return {**noise, **mode, "unaccounted": True, "values": values, "key": random.bytes(32)}


def _secure_aggregation(random: Random) -> dict[str, Any]:
    bits, clients = int(random.choice([32, 64])), [int(client) for client in random.permutation(20)[:6]]
    survivors, dropped = tuple(clients[:4]), tuple(clients[4 : 4 + int(random.integers(3))])
    request: dict[str, Any] = {
        "round_id": "splits",
        "modulus_bits": bits,
        "threshold": (len(survivors) + len(dropped)) // 2 + 1,
        "survivors": survivors,
        "dropped": dropped,
        "pairs": tuple((gone, stayed) for gone in dropped for stayed in survivors),
        "quantisation": {"clip": str(2 ** (bits - 1)), "scale": "1"},
        "output": "int",
        "masked": random.integers(0, 2**bits, (4, int(random.integers(1, 300))), dtype=f"uint{bits}"),
        "self_seeds": random.integers(0, 256, (4, 32), np.uint8),
    }
    if dropped:
        request["pair_seeds"] = random.integers(0, 256, (4 * len(dropped), 32), np.uint8)
    return request


def _federated_average(random: Random) -> dict[str, Any]:
    clients, width = int(random.integers(1, 30)), int(random.integers(1, 60))
    request: dict[str, Any] = {"updates": _floats(random, clients, width), "weights": random.uniform(0.1, 2, clients)}
    if random.random() < 0.3:
        request = {
            "round": {"survivors": 5, "quantisation": {"clip": "1", "scale": "1024"}},
            "sum": random.integers(-5_000, 5_000, width),
        }
    if random.random() < 0.6:
        dp = {"clip": "1.5", "expected_weight": "4", "neighbouring": "add_remove", "rho": "1"}
        request |= {"dp": dp, "unaccounted": True}
    if random.random() < 0.7:
        request |= {"model": random.normal(0, 1, width)}
        request |= {"strategy": str(random.choice(["fedavg", "fedadam"]))}
    return {**request, "key": random.bytes(32)}


def _shamir_share(random: Random) -> dict[str, Any]:
    shares = int(random.integers(2, 8))
    request = {"field": str(random.choice(["m31", "m61"])), "shares": shares, "key": random.bytes(32)}
    request["threshold"] = int(random.integers(2, shares + 1))
    size = int(random.integers(1, 3_000))
    if random.random() < 0.5:
        return {**request, "scale": "1000", "values": random.normal(0, 1, size)}
    return {**request, "values": random.integers(-1_000, 1_000, size)}


def _shamir_reconstruct(random: Random) -> dict[str, Any]:
    shared = _shamir_share(random)
    key, values = shared.pop("key"), shared.pop("values")
    shares = Case("shamir_share", shared, lambda: {"values": values}, key=key).run()["shares"]
    x = [int(one) for one in random.permutation(shared.pop("shares"))[: random.integers(shared["threshold"], 9)]]
    taken = shares[x]
    if len(x) >= shared["threshold"] + 2:
        taken[random.integers(len(x)), random.integers(values.size)] ^= 1
    return {**shared, "x": tuple(one + 1 for one in x), "correct": True, "shares": taken}


def _two(random: Random) -> dict[str, Any]:
    x = _floats(random, int(random.integers(300, 3_000)))
    return {"x": x, "y": random.standard_normal(x.shape).astype(x.dtype)}


def _rows(random: Random) -> dict[str, Any]:
    if random.random() < 0.3:
        return {"x": _floats(random, int(random.integers(9_000, 40_000)))}
    return {"axis": "last", "x": _floats(random, int(random.integers(2, 40)), int(random.integers(1, 90)))}


def _two_rows(random: Random) -> dict[str, Any]:
    request = _rows(random)
    return {**request, "y": random.standard_normal(request["x"].shape).astype(request["x"].dtype)}


def _declared(operation: Operation) -> Callable[[Random], dict[str, Any]]:
    def draw(random: Random) -> dict[str, Any]:
        policy, close = str(random.choice(["window", "skip", "ffill"])), _prices(random)
        reach = np.abs(random.normal(0, 0.01, close.shape)).astype(close.dtype)
        bars = {"open": close * (1 + reach / 2), "high": close * (1 + reach), "low": close * (1 - reach)}
        bars |= {
            "close": close,
            "benchmark": close * (1 - 2 * reach),
            "volume": (1e6 * (1 + reach)).astype(close.dtype),
            "session": np.sign(random.normal(0, 1, close.shape)).astype(close.dtype),
        }
        inputs = {given.name: bars[given.shown] for given in operation.inputs}
        return {**operation.example.params, "nan_policy": policy, **inputs}

    return draw


def _expression(random: Random) -> dict[str, Any]:
    return {**OPERATIONS["expression"].example.params, "close": _prices(random)}


def _bars(random: Random) -> dict[str, Any]:
    inputs = smaller(
        (int(random.integers(3, 13)), int(random.integers(50, 300))), nan=0.1, seed=int(random.integers(99))
    )
    real = random.choice(["float64", "float32"])
    numbers = {name: array.astype(real) for name, array in inputs.items() if name != "time"}
    gaps = str(random.choice(["omit", "nan", "last"]))
    return {"by": "time", "every": 1800.0, "gaps": gaps, "nan_policy": "skip", **numbers, "time": inputs["time"]}


def _across(random: Random, factors: bool = False) -> dict[str, Any]:
    assets, time = int(random.integers(5, 40)), int(random.integers(20, 120))
    moving, weights = bool(random.random() < 0.5), factors and bool(random.random() < 0.5)
    groups, count = int(random.integers(0, 5)), int(random.integers(0, 4)) if factors else 0
    found = market(assets, time, str(random.choice(["float64", "float32"])), groups, count, weights, moving)
    return dict(found)


def _black_scholes(random: Random) -> dict[str, Any]:
    model = str(random.choice(MODELS))
    return {"model": model, **_one_for_all(random, book(int(random.integers(48, 160)), model))}


def _american(random: Random) -> dict[str, Any]:
    return {"accuracy": "fast", **_one_for_all(random, early_book(int(random.integers(40, 80))))}


def _one_for_all(random: Random, inputs: dict[str, Any]) -> dict[str, Any]:
    """Some of the numbers of options the same for all, as params."""
    found = {name: float(array[0]) if random.random() < 0.3 else array for name, array in inputs.items()}
    if not isinstance(found["is_call"], np.ndarray):
        found["option"] = "call" if found.pop("is_call") else "put"
    return found


def _covariance(random: Random) -> dict[str, Any]:
    batch = [(), (int(random.integers(2, 6)),)][random.integers(2)]
    shape = *batch, int(random.integers(2, 80)), int(random.integers(2, 80))
    method = str(random.choice(["sample", "ewma", "ledoit_wolf"]))
    return {"method": method, "returns": 0.01 * _floats(random, *shape)}


def _risk_parity(random: Random) -> dict[str, Any]:
    assets = int(random.integers(2, 13))
    return {"covariance": matrices(int(random.integers(3, 13)), assets), "budgets": random.uniform(0.5, 2, assets)}


def _tridiagonal(random: Random, rhs: bool = False) -> dict[str, Any]:
    count, rows, parts = int(random.integers(3, 40)), int(random.integers(1, 12)), int(random.integers(1, 3))
    seed, real = int(random.integers(99)), str(random.choice(["float64", "float32"]))
    found = systems(count, rows, real, parts, parts, seed=seed)
    return {"shift": 0.25, "shift_imaginary": float(random.integers(2)), **(found if rhs else _matrix(found))}


def _matrix(found: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in found.items() if name != "rhs"}


def _value_at_risk(random: Random) -> dict[str, Any]:
    portfolios, assets, scenarios = (int(random.integers(*ends)) for ends in ((2, 9), (1, 7), (40, 150)))
    method = str(random.choice(["historical", "parametric", "monte_carlo"]))
    given: dict[str, Any] = {"method": method, "levels": (0.9,), "components": bool(random.random() < 0.5)}
    if method == "monte_carlo":
        return {**given, "scenarios": scenarios, **covariance(assets, portfolios), "seed": int(random.integers(99))}
    decay = {"decay": 0.99} if random.random() < 0.5 else {}
    return {**given, **decay, **weighted_book(scenarios, assets, portfolios), "seed": 1}


def _backtest(random: Random) -> dict[str, Any]:
    bars = candles(random, int(random.integers(12, 24)), int(random.integers(80, 160)), gaps=0.05)
    return {"strategy": CROSS, "values": {"fast": 3, "slow": 8, "level": 70}, "stop_loss": 0.03, **bars}


def _backtest_sweep(random: Random) -> dict[str, Any]:
    bars = candles(random, int(random.integers(3, 6)), int(random.integers(80, 120)), gaps=0.05)
    graph = {"target": {"op": "sub", "a": {"op": "sma", "of": "close", "period": {"param": "fast"}}, "b": "open"}}
    grid = {"fast": tuple(int(fast) for fast in random.integers(2, 20, 3)), "reach": (0.5, 1.0)}
    stop = {"op": "mul", "a": {"param": "reach"}, "b": {"op": "atr", "period": 5}}
    return {"strategy": graph, "grid": grid, "trailing_stop": stop, **bars}


def _overfitting(random: Random) -> dict[str, Any]:
    returns = random.normal(0, 0.01, (int(random.integers(2, 80)), int(random.integers(16, 60))))
    return {"blocks": 8, "returns": returns}


# Parameters, inputs, seed and key of a random request, by name.
REQUEST: dict[str, Callable[[Random], dict[str, Any]]] = {
    "matmul": _matmul,
    **{operation.name: _declared(operation) for operation in DECLARED},
    "sma": _indicator(),
    "ema": _indicator("talib", "tradingview"),
    "rsi": _indicator("talib", "cutler", "ema", "tradingview"),
    "bollinger": _indicator(),
    "expression": _expression,
    "bars": _bars,
    "cross_rank": lambda random: {"ties": str(random.choice(["average", "dense", "first"])), **_across(random)},
    "cross_zscore": lambda random: {"ddof": int(random.integers(2)), **_across(random)},
    "winsorise": lambda random: {"lower": 0.1, "upper": float(random.uniform(0.5, 1)), **_across(random)},
    "neutralise": lambda random: _across(random, factors=True),
    "black_scholes": _black_scholes,
    "american_option": _american,
    "covariance": _covariance,
    "risk_parity": _risk_parity,
    "implied_volatility": lambda random: _one_for_all(random, quotes(int(random.integers(48, 160)))),
    "tridiagonal_solve": lambda random: _tridiagonal(random, rhs=True),
    "tridiagonal_inverse_diagonal": _tridiagonal,
    "backtest_sweep": _backtest_sweep,
    "backtest": _backtest,
    "overfitting": _overfitting,
    "monte_carlo": _monte_carlo,
    "basket_option": _basket_option,
    "value_at_risk": _value_at_risk,
    "var_backtest": lambda random: forecasts(int(random.integers(4, 30)), int(random.integers(20, 90))),
    "performance": lambda random: series(
        int(random.integers(4, 30)), int(random.integers(20, 90)), benchmark=bool(random.random() < 0.5)
    ),
    "dp_noise": _dp_noise,
    "secure_aggregation": _secure_aggregation,
    "federated_average": _federated_average,
    "shamir_share": _shamir_share,
    "shamir_reconstruct": _shamir_reconstruct,
    "add": _two,
    "multiply": _two,
    "axpy": lambda random: {"alpha": float(random.normal()), **_two(random)},
    "dot": _two_rows,
    "sum": _rows,
    "norm": lambda random: {"order": str(random.choice(["l1", "l2", "linf"])), **_rows(random)},
    "min": _rows,
    "max": _rows,
}


# Declared indicators run the same code: of them those whose programs have other loops, and several inputs.
_TYPICAL = {
    "sma",
    "ema",
    "rsi",
    "bollinger",
    "macd",
    "adx",
    "stochastic_rsi",
    "rolling",
    "cci",
    "obv",
    "keltner",
    "swing_pivots",
    "alma",
    "rolling_quantile",
}
# Those that a GPU computes.
_ON_GPU = {name: operation for name, operation in OPERATIONS.items() if operation.gpu}
SPLIT = [name for name in _ON_GPU if name in _TYPICAL or OPERATIONS[name] not in DECLARED]


@dataclass(frozen=True)
class Request:
    case: Case
    grid: Grid


def drawn(name: str, random: Random) -> Request:
    """A request whose job has chunks enough to be split; the last drawn where none has."""
    for _ in range(200):
        given = REQUEST[name](random)
        seed, key = given.pop("seed", None), given.pop("key", None)
        inputs = {field: given.pop(field) for field in tuple(given) if isinstance(given[field], np.ndarray)}
        case = Case(name, given, lambda inputs=inputs: inputs, seed=seed, key=key)  # type: ignore[misc]
        params = OPERATIONS[name].params.model_validate(given, strict=False)
        infos = {field: ArrayInfo(str(array.dtype), array.shape) for field, array in inputs.items()}
        request = Request(case, OPERATIONS[name].grid(params, infos))
        if 3 <= request.grid.chunks <= 12:
            break
    return request


def schedules(grid: Grid, allocations: int, random: Random) -> Iterator[dict[str, Any]]:
    """What `RememberingDevice.begin` is told: memory for some chunks, which allocations fail, another kind of GPU."""
    while True:
        resident = int(random.integers(1, max(2, grid.chunks)))  # fewer than all
        first, times = int(random.integers(1, 2 * allocations + 1)), int(random.integers(0, 4))
        yield {
            # Views and the ends of arrays may take a little more than the chunks.
            "memory": grid.fixed + resident * grid.each if grid.each and random.random() < 0.7 else 1 << 40,
            "lanes": int(random.choice([1, 1, 1, 2])),
            "shape": ((4, 2), (3, 1))[int(random.random() < 0.25)],
            "runs_out": lambda now, first=first, times=times: first <= now < first + times,
        }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SPLIT)
def test_no_split_and_no_want_of_memory_changes_a_byte(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = OPERATIONS[name]
    device, outcomes = RememberingDevice(), Counter[str]()
    private = operation.randomness == "private" or any(given.secret for given in operation.inputs)
    wanted = math.ceil(SCHEDULES / len(SPLIT) / REQUESTS)
    for number in range(REQUESTS):
        # Two lanes race for memory, so how many schedules it takes differs: the requests must not follow from that.
        random = np.random.default_rng([*name.encode(), number])
        _make_small(operation, random, monkeypatch)
        request = drawn(name, random)
        monkeypatch.setattr(chunks, "PART", request.grid.each)  # so that lanes are worth it
        device.begin()
        whole, whole_takes = request.case.run(device), device.allocations
        answered = 0
        for schedule in schedules(request.grid, whole_takes, random):
            device.begin(**schedule)
            outcome = _run(request, whole, whole_takes, device)
            if outcome in ("in parts", "in one piece"):
                answered += 1
            else:
                assert "; one chunk needs " in outcome
                outcome = "refused"
            if private:
                assert device.uncleared == 0
            outcomes[outcome] += 1
            if answered == wanted:
                break
    assert outcomes["in parts"] + outcomes["in one piece"] >= SCHEDULES / len(SPLIT)
    assert outcomes["in parts"] > outcomes["in one piece"], outcomes
    assert outcomes["refused"] < outcomes["in parts"], outcomes
    assert device.computed < device.calls / 5, "or this takes long"


@pytest.mark.parametrize("name", SPLIT)
def test_chunks_take_no_more_memory_than_the_grid_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, random, device = OPERATIONS[name], np.random.default_rng(list(name.encode())), RememberingDevice()
    for _ in range(REQUESTS):
        _make_small(operation, random, monkeypatch)
        request = drawn(name, random)
        for resident in range(1, request.grid.chunks + 1):
            device.begin(memory=request.grid.fixed + resident * request.grid.each)
            request.case.run(device)
            assert device.starved == 0, (request.case.params, request.grid, resident)


def _run(request: Request, whole: dict[str, Any], whole_takes: int, device: RememberingDevice) -> str:
    try:
        answer = request.case.run(device)
    except OutOfMemory as error:
        outcome = str(error)
    else:
        assert_same(request.case, whole, answer)
        outcome = "in parts" if device.allocations > whole_takes else "in one piece"
    if device.memory.used():
        gc.collect()
    assert device.memory.used() == 0
    assert device.memory.unreserved() == device.memory.limit
    return outcome


def _make_small(operation: Operation, random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    # The products of a covariance are cut as those of matmul.
    package = "warpdesk_server.kernels.matmul" if operation.name == "covariance" else operation.package
    constant, values = SMALL[package]
    monkeypatch.setattr(f"{package}.spec.{constant}", int(random.choice(values)))


def test_every_operation_has_requests_and_can_be_cut_small() -> None:
    assert set(REQUEST) == set(_ON_GPU)
    assert set(SMALL) == {operation.package for operation in _ON_GPU.values()}
