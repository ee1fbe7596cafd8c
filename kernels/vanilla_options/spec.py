"""The specification of the operations on vanilla options: prices with Greeks, European and American, and implied
volatilities."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, Literal, NamedTuple

from pydantic import Field

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem, refuse
from warpdesk_server.kernels.sharding import Division, Sharding

# Options in a chunk on a device; it changes no byte.
CHUNK = 1 << 20
# The range of numbers, as in vanilla_options.cu. Prices, volatilities and maturities are 0 or at least LEAST.
LEAST = 1e-50
MOST = 1e50
MOST_RATE = 100.0  # |rate| * maturity and |dividend| * maturity; e^-100 is 4e-44

Number = float | None

# What is said of each implied volatility, as in vanilla_options.cu.
OK, BELOW, ABOVE, NO_VEGA, UNKNOWN = range(5)
# What is said of each American option, as in american.cu, besides UNKNOWN.
HOLD, EXERCISE, EUROPEAN, OUTSIDE = range(4)
TWO_BOUNDARIES = 5
# The range in which errors are stated: of the spread, which is volatility * sqrt(maturity), and of a put's
# (rate - dividend) * maturity in parts of it. A smaller spread is taken as none.
LEAST_SPREAD, MOST_SPREAD = 1e-10, 3.0
LEAST_DRIFT, MOST_DRIFT = -10.0, 30.0
WORK_LIMIT = 20_000_000_000  # points of quadrature of a job of American options: some minutes of a core
AMERICAN_BYTES = 400  # of an American option on the CPU beside its inputs; 329 were measured at the peak


class Scheme(NamedTuple):
    """The size of a numerical scheme of American options, and its errors.

    Those are of prices of strike 100 in everyday markets, which README.md describes beside others.
    """

    nodes: int  # points in time of the boundary, 4 k + 1
    points: int  # of the quadrature of each node
    steps: int  # of the fixed point
    last: int  # points of the quadrature of the price
    rms_error: float
    max_error: float

    @property
    def work(self) -> int:
        """Points of quadrature of an option: of its price, vega and rho."""
        return 3 * (self.nodes * self.points * self.steps + self.last)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.nodes, self.points, self.steps, self.last


SCHEMES = {
    "fast": Scheme(5, 7, 3, 15, 1e-4, 1e-3),
    "accurate": Scheme(9, 11, 4, 25, 1e-5, 1e-4),
    "high": Scheme(13, 21, 7, 41, 5e-7, 5e-6),
}
# Steps of an implied volatility: after three a guess is good to 1e-12, and the others have what rounding left.
HALLEY_STEPS = 3
NEWTON_STEPS = 2
NORMAL_STEPS = 1  # of Halley, under a normal price, which leaves 1e-9; one of Newton follows


class _Contract(Params):
    """One number for all options, or None where each option has its own in the input of the same name."""

    option: Literal["call", "put"] | None = Field(
        default=None, description="what all options are; else the input is_call says it of each"
    )
    spot: Number = Field(default=None, ge=-MOST, le=MOST, description="spot price of all options")
    forward: Number = Field(default=None, ge=-MOST, le=MOST, description="forward price of all options")
    strike: Number = Field(default=None, ge=-MOST, le=MOST, description="strike of all options")
    rate: Number = Field(default=None, ge=-MOST, le=MOST, description="rate of all options")
    dividend: Number = Field(default=None, ge=-MOST, le=MOST, description="dividend yield of all options")
    maturity: Number = Field(default=None, ge=-MOST, le=MOST, description="years until expiry of all options")


class BlackScholes(_Contract):
    model: Literal["black_scholes_merton", "black76", "bachelier"] = Field(
        default="black_scholes_merton",
        description="black_scholes_merton: lognormal, of spot and dividend. black76: lognormal, of forward. "
        "bachelier: normal, of forward; forward and strike may be negative.",
    )
    volatility: Number = Field(default=None, ge=-MOST, le=MOST, description="volatility of all options")
    per: Literal["unit", "market"] = Field(
        default="unit",
        description="unit: vega for 1.00 of volatility, rho for 1.00 of rate, theta for a year. market: vega and rho "
        "for 0.01, theta for a day of 365.",
    )

    @property
    def units(self) -> tuple[float, float]:
        """What vega and rho are for, and what theta is for, in years."""
        return (1.0, 1.0) if self.per == "unit" else (0.01, 1 / 365)


class American(BlackScholes):
    model: Literal["black_scholes_merton", "black76"] = Field(
        default="black_scholes_merton",
        description="black_scholes_merton: lognormal, of spot and dividend. black76: lognormal, of forward.",
    )
    accuracy: Literal["fast", "accurate", "high"] = Field(
        default="accurate",
        description="size of the scheme. Prices of strike 100 in everyday markets are good to 1e-3 (fast), 1e-4 "
        "(accurate) or 5e-6 (high); the family's README has the "
        "errors of others, up to the corners of the range. Each takes some three times as long as the one before.",
    )

    @property
    def scheme(self) -> Scheme:
        return SCHEMES[self.accuracy]

    @property
    def values(self) -> dict[str, Any]:
        """The output that says how the others were computed."""
        return {"scheme": {"accuracy": self.accuracy, **self.scheme._asdict()}}


class ImpliedVolatility(_Contract):
    model: Literal["black_scholes_merton", "black76", "bachelier"] = Field(
        default="black_scholes_merton",
        description="black_scholes_merton: lognormal, of spot and dividend. black76: lognormal, of forward. "
        "bachelier: normal, of forward; forward and strike may be negative.",
    )
    price: Number = Field(default=None, ge=-MOST, le=MOST, description="price of all options")


def quantities(params: _Contract) -> tuple[str, ...]:
    """The names of an option's numbers under a model, in the order of the loops and kernels."""
    of_spot = params.model == "black_scholes_merton"  # type: ignore[attr-defined]
    underlying = ("spot", "strike", "rate", "dividend") if of_spot else ("forward", "strike", "rate")
    return (*underlying, "price" if isinstance(params, ImpliedVolatility) else "volatility", "maturity")


def shape_of(inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of an answer: that of the options' arrays, broadcast as NumPy does, or (1) where all is one number."""
    shapes = [tuple(info.shape) for info in inputs.values()]
    rank = max(map(len, shapes), default=0)
    filled = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*filled, strict=True)) or (1,)


def arrays_of(operation: Operation) -> list[str]:
    """The names of an operation's outputs that are arrays."""
    return [each.name for each in operation.outputs if each.kind == "array"]


def _check(params: Any, inputs: Mapping[str, ArrayInfo]) -> None:
    problems = [*_absent_or_double(params, inputs), *_unlike(inputs), *_out_of_range(params)]
    if problems:
        raise InvalidRequest(*problems)


def _absent_or_double(params: Any, inputs: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    needed = quantities(params)
    for name in needed:
        number = getattr(params, name)
        if number is not None and name in inputs:
            yield Problem(f"/params/{name}", f"{name} is given as the number {number:g} and as an array; give one")
        if number is None and name not in inputs:
            yield Problem(f"/params/{name}", f"{params.model} needs {name}: one number in params or an array in inputs")
    for name in ("spot", "forward", "dividend"):
        if name not in needed and (getattr(params, name) is not None or name in inputs):
            where = "inputs" if name in inputs else "params"
            yield Problem(f"/{where}/{name}", f"{params.model} has no {name}; it takes {', '.join(needed)}")
    if params.option is not None and "is_call" in inputs:
        yield Problem("/params/option", f"option is {params.option} and is_call says it of each option; give one")
    if params.option is None and "is_call" not in inputs:
        yield Problem("/params/option", "option is needed: call or put, or an array is_call in inputs")


def _unlike(inputs: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    shape = shape_of(inputs)
    for name, info in inputs.items():
        whole = shape[len(shape) - len(info.shape) :]
        if any(size not in (1, most) for size, most in zip(info.shape, whole, strict=True)):
            yield Problem(
                f"/inputs/{name}",
                f"shape {list(info.shape)}, and the options have {list(shape)}: each axis of an array has the length "
                "of the options or 1, as NumPy broadcasts; what is the same for all options is a number in params",
            )


def _out_of_range(params: Any) -> Iterator[Problem]:
    """The numbers in params that would make every answer NaN."""
    signed = {"rate", "dividend", "price"} | ({"forward", "strike"} if params.model == "bachelier" else set())
    for name in quantities(params):
        number = getattr(params, name)
        if number is not None and name not in signed and not (number == 0.0 or number >= LEAST):
            yield Problem(f"/params/{name}", f"{name} should be 0 or at least {LEAST:g}, got {number:g}")
    for name in ("rate", "dividend"):
        number, years = getattr(params, name), params.maturity
        if number is not None and years is not None and abs(number * years) > MOST_RATE:
            yield Problem(
                f"/params/{name}",
                f"{name} {number:g} over {years:g} years is a factor of e^{number * years:g}; at most e^{MOST_RATE:g} "
                "either way is allowed",
            )


def grid(outputs: int, fixed: int = 0) -> Any:
    """The grid of a job: chunks of CHUNK options, each with its inputs and so many bytes of outputs; numbers in params
    and `fixed` bytes besides."""

    def cut(params: Any, inputs: Mapping[str, ArrayInfo]) -> Grid:
        size = prod(shape_of(inputs))
        each = outputs + sum(info.nbytes // info.size for info in inputs.values())
        return Grid(-(-size // CHUNK), min(size, CHUNK) * each, 8 * len(quantities(params)) + 8 + fixed)

    return cut


def cost(outputs: int, seconds: float) -> Any:
    """The cost of a job: its arrays, with so many bytes of outputs an option, and the seconds of one core for each."""

    def count(_params: Any, inputs: Mapping[str, ArrayInfo]) -> Cost:
        size = prod(shape_of(inputs))
        copied = sum(info.nbytes // info.size * size for info in inputs.values() if info.size < size)  # broadcast
        given = sum(info.nbytes for info in inputs.values())
        return Cost(given + copied + outputs * size, float(size), step=seconds)

    return count


def _american_cost(params: American, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of American options: points of quadrature, for the price, vega and rho."""
    found: Cost = cost(AMERICAN_BYTES, 1.5e-8)(params, inputs)
    return replace(found, work=params.scheme.work * found.work)


def _check_american(params: American, inputs: Mapping[str, ArrayInfo]) -> None:
    _check(params, inputs)
    count = prod(shape_of(inputs))
    if (work := count * params.scheme.work) > WORK_LIMIT:
        raise refuse(
            "/params/accuracy",
            f"{count:,} options with accuracy {params.accuracy} take {work:,} points of quadrature; at most "
            f"{WORK_LIMIT:,} are allowed: that is {WORK_LIMIT // params.scheme.work:,} options",
        )


def _sharding(params: American, inputs: Mapping[str, ArrayInfo]) -> Sharding | None:
    """The sharding of American options: one by one, where each has its own numbers in every array."""
    shape = shape_of(inputs)
    if not inputs or any(info.shape != shape for info in inputs.values()):
        return None
    return Sharding(
        prod(shape),
        lambda _: params,
        inputs={name: Division(info, inner=0) for name, info in inputs.items()},
        joined={
            name: Division(ArrayInfo("uint8" if name == "status" else "float64", shape), inner=0)
            for name in arrays_of(AMERICAN_OPTION)
        },
        values=params.values,
    )


def _input(name: str, doc: str) -> Input:
    doc = f"{doc}; an array, or one number for all; arrays are broadcast as NumPy does; NaN where unknown"
    return Input(name, doc, ("float64",), tuple(range(1, 9)), required=False, nan=True, axes=("...",))


_CONTRACT = (
    _input("spot", "price of the asset today, in black_scholes_merton"),
    _input("forward", "forward price of the asset at expiry, in the other models"),
    _input("strike", "strike, in the currency of the price"),
    _input("rate", "risk-free rate, continuously compounded, for a year"),
    _input("dividend", "dividend yield, continuously compounded, for a year, in black_scholes_merton"),
    _input("maturity", "years until expiry"),
)
_VOLATILITY = _input(
    "volatility", "per square root of a year: 0.2 is 20 %; in bachelier in the currency of the price, such as 1.5"
)
_PRICE = _input("price", "price of the option today")
_IS_CALL = Input(
    "is_call",
    "1 for a call, 0 for a put, broadcast with the other arrays; not beside option",
    ("uint8",),
    tuple(range(1, 9)),
    required=False,
    axes=("...",),
)


def _each(name: str, doc: str, dtype: DType = "float64") -> Output:
    """An output with a number for each option, or of shape (1) where no input is an array."""
    return Output(name, doc, axes=("1", "..."), dtype=dtype)


_SHAPE = "of the shape that the arrays have together, or (1)"
_SHOWN = Example(
    {"option": "call", "spot": 100.0, "rate": 0.05, "dividend": 0.02, "maturity": 0.5},
    {
        "strike": {"data": [80.0, 100.0, 120.0], "dtype": "float64"},
        "volatility": {"data": [0.25, 0.2, 0.18], "dtype": "float64"},
    },
)
_BACHELIER = Example(
    {"model": "bachelier", "option": "put", "forward": 0.02, "rate": 0.01, "volatility": 0.008, "maturity": 2.0},
    {"strike": {"data": [-0.01, 0.02, 0.03], "dtype": "float64"}},
)
_NORMAL_QUOTES = Example(
    {"model": "bachelier", "option": "put", "forward": 0.02, "rate": 0.01, "maturity": 2.0},
    {
        "strike": {"data": [-0.01, 0.02, 0.03], "dtype": "float64"},
        "price": {"data": [0.0000093, 0.0044238, 0.0111], "dtype": "float64"},
    },
)

BLACK_SCHOLES = Operation(
    name="black_scholes",
    summary="Prices and Greeks of European options by Black-Scholes-Merton, Black 76 or Bachelier.",
    package="warpdesk_server.kernels.vanilla_options",
    params=BlackScholes,
    inputs=(*_CONTRACT, _VOLATILITY, _IS_CALL),
    outputs=(
        _each("price", f"value today; {_SHAPE}, as all outputs; NaN where an input is NaN or out of range"),
        _each("delta", "change of the price for 1 of the spot, or of the forward"),
        _each("gamma", "change of delta for 1 of the spot, or of the forward; infinite at its kink"),
        _each("vega", "change of the price for 1.00 of volatility; with per: market for 0.01"),
        _each("theta", "change of the price with time: in a year, with per: market in a day of 365"),
        _each("rho", "change of the price for 1.00 of the rate, the spot or forward the same; per: market for 0.01"),
    ),
    example=_SHOWN,
    cost=cost(48, 2.5e-8),
    grid=grid(48),
    check=_check,
    batching=Batching(steps=4e5),
    variants=(_BACHELIER,),
    compile_seconds=3.0,
)

IMPLIED_VOLATILITY = Operation(
    name="implied_volatility",
    summary="Volatilities that European options' prices imply under Black-Scholes-Merton, Black 76 or Bachelier.",
    package="warpdesk_server.kernels.vanilla_options",
    params=ImpliedVolatility,
    inputs=(*_CONTRACT, _PRICE, _IS_CALL),
    outputs=(
        _each(
            "volatility",
            "per square root of a year, in bachelier in the currency of the price; NaN where status is not 0; "
            + _SHAPE,
        ),
        _each(
            "status",
            "uint8, of the same shape. 0: found. 1: the price is below the intrinsic value. 2: it is at or above the "
            "most that any volatility gives. 3: it says nothing of volatility, as without time value. 4: a number is "
            "NaN or out of range.",
            "uint8",
        ),
    ),
    example=Example(
        {"option": "call", "spot": 100.0, "rate": 0.05, "dividend": 0.02, "maturity": 0.5},
        {
            "strike": {"data": [80.0, 100.0, 120.0, 140.0], "dtype": "float64"},
            "price": {"data": [21.618, 6.308, 0.604, 0.0], "dtype": "float64"},
        },
    ),
    cost=cost(9, 2e-7),
    grid=grid(9),
    check=_check,
    batching=Batching(steps=5e4),
    variants=(_NORMAL_QUOTES,),
    compile_seconds=5.0,
)

AMERICAN_OPTION = Operation(
    name="american_option",
    summary="Prices, Greeks and critical prices of American options by Black-Scholes-Merton or Black 76.",
    package="warpdesk_server.kernels.vanilla_options",
    params=American,
    inputs=(*_CONTRACT, _VOLATILITY, _IS_CALL),
    outputs=(
        _each("price", f"value today; {_SHAPE}, as all outputs; NaN where status is 4 or 5"),
        _each("delta", "change of the price for 1 of the spot, or of the forward; -1 or 1 where exercised now"),
        _each("gamma", "change of delta for 1 of the spot, or of the forward; 0 where exercised now"),
        _each("vega", "change of the price for 1.00 of volatility; with per: market for 0.01"),
        _each("theta", "change of the price with time: in a year, with per: market in a day of 365"),
        _each("rho", "change of the price for 1.00 of the rate, the spot or forward the same; per: market for 0.01"),
        _each(
            "critical_price",
            "spot or forward at and below which a put, or at and above which a call, is exercised today; 0 or infinite "
            "where none is",
        ),
        _each(
            "status",
            "uint8, of the same shape. 0: worth more alive. 1: exercised now. 2: never exercised before expiry, so "
            "European. 3: computed outside the range for which errors are stated. 4: a number is NaN or out of range. "
            "5: two boundaries, as of a put with dividend < rate < 0.",
            "uint8",
        ),
        Output(
            "scheme",
            "object: accuracy; the sizes nodes, points, steps and last; rms_error and max_error of prices of strike "
            "100 in everyday markets",
            kind="value",
        ),
    ),
    example=Example(
        {"option": "put", "spot": 100.0, "rate": 0.05, "dividend": 0.02, "volatility": 0.2, "maturity": 1.0},
        {"strike": {"data": [80.0, 100.0, 120.0], "dtype": "float64"}},
    ),
    variants=(
        Example(
            {"option": "put", "spot": 100.0, "rate": 0.05, "dividend": 0.02, "maturity": 1.0},
            {
                "strike": {"data": [80.0, 100.0, 120.0], "dtype": "float64"},
                "volatility": {"data": [0.2, 0.0, 0.3], "dtype": "float64"},
            },
        ),
    ),
    cost=_american_cost,
    grid=grid(57, fixed=1 << 16),  # the largest table has 34 kB
    check=_check_american,
    batching=Batching(steps=6e5),
    compile_seconds=7.0,
    sharding=_sharding,
)

OPERATIONS = (BLACK_SCHOLES, IMPLIED_VOLATILITY, AMERICAN_OPTION)
