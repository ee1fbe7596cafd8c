"""The specification of `bars`: bars of time, count, volume or dollars, from ticks or from smaller bars."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from pydantic import Field

from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import refuse

SECOND = 1_000_000_000  # nanoseconds
LIMIT = 2**62  # nanoseconds from 1970 to any time, the years 1823 to 2116, so that differences fit in 64 bits

# Bars that are made where gaps are filled: so many, and so many for each entry.
FILLED, FILLED_OF_ENTRY = 1_000_000, 10

# Entries of a chunk on a device, whole rows each. It changes no byte.
CHUNK = 1 << 22
_ROUNDING = 1 << 14  # an allocator rounds each array up to 512 bytes

TICKS = ("price", "size")
SMALLER = ("open", "high", "low", "close", "volume")
NUMBERS = ("open", "high", "low", "close", "volume", "vwap")  # outputs of the inputs' dtype


class Bars(Params):
    by: Literal["time", "count", "volume", "dollar"] = Field(
        description="what closes a bar. time: its end. count: so many entries. volume, dollar: the entry at which the "
        "sum of sizes, or of prices times sizes, reaches `every`; a large entry closes one bar, and its excess is not "
        "carried over"
    )
    every: float = Field(
        gt=0, le=1e15, description="length of a bar: seconds for time, entries for count, else the sum that closes it"
    )
    origin: int = Field(
        0,
        gt=-LIMIT,
        lt=LIMIT,
        description="where a bar of time begins, and all others by multiples of `every`: nanoseconds since 1970 UTC; "
        "with sessions bars begin at each session's open instead",
    )
    gaps: Literal["omit", "nan", "last"] = Field(
        "omit",
        description="a bar of time without an entry, between the first and the last bar: left out, NaN, or all prices "
        "those of the last close; with volume 0, count 0 and no vwap",
    )
    incomplete: Literal["keep", "drop"] = Field(
        "keep",
        description="bars that may still change or did not reach `every`: kept with `complete` 0, or left out",
    )
    nan_policy: Literal["error", "skip"] = Field(
        "error", description="entries with a NaN: refused, or left out as if they did not exist"
    )


def nanoseconds(params: Bars) -> int:
    """The length of a bar of time."""
    return int(_exact(params.every) * SECOND)


def _exact(number: float) -> Fraction:
    return Fraction(repr(number))  # as it is written: 0.1 is a tenth


def most_bars(entries: int) -> int:
    """The most bars that are made of so many entries where gaps are filled, all assets together."""
    return FILLED + FILLED_OF_ENTRY * entries


def values_of(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the inputs with prices and sizes: those of ticks, or those of smaller bars."""
    return tuple(name for name in (*TICKS, *SMALLER, "vwap") if inputs.get(name) is not None)


def check(params: Bars, infos: Mapping[str, ArrayInfo]) -> None:
    """Refuse parameters and inputs that do not fit each other. What only the data shows is refused by the job."""
    _check_length(params)
    _check_inputs(params, infos)
    first, entries = infos[values_of(infos)[0]], infos["time"].shape[0]
    for name in values_of(infos):
        info = infos[name]
        if (info.dtype, info.shape) != (first.dtype, first.shape):
            raise refuse(
                f"/inputs/{name}",
                f"{name} is {info.dtype} of shape {list(info.shape)}, and {values_of(infos)[0]} is {first.dtype} of "
                f"shape {list(first.shape)}; they must be alike",
            )
        if params.nan_policy == "error" and info.has_nan and name != "vwap":
            raise refuse(f"/inputs/{name}", f'{name} holds a NaN and nan_policy is "error"')
    if first.shape[-1] != entries:
        raise refuse("/inputs/time", f"{entries} times for {first.shape[-1]} entries")
    if first.ndim == 2 and "price" in infos:
        raise refuse("/inputs/price", "ticks are of one series, shape (ticks): assets trade at times of their own")
    if first.ndim == 2 and params.by != "time":
        raise refuse("/params/by", f'{first.shape[0]} assets have their bars in common: by should be "time"')


def _check_length(params: Bars) -> None:
    if params.by == "time" and (_exact(params.every) * SECOND).denominator != 1:
        raise refuse("/params/every", f"every should be a whole number of nanoseconds, got {params.every!r} seconds")
    if params.by == "time" and nanoseconds(params) > LIMIT:
        raise refuse("/params/every", f"every should be at most {LIMIT // SECOND} seconds, got {params.every!r}")
    if params.by == "count" and params.every != int(params.every):
        raise refuse("/params/every", f"every should be a whole number of entries, got {params.every!r}")
    if params.by != "time" and params.gaps != "omit":
        raise refuse("/params/gaps", f'bars by {params.by} have no gaps: leave out gaps, got "{params.gaps}"')
    if params.by != "time" and params.origin != 0:
        raise refuse("/params/origin", f"bars by {params.by} have no origin, got {params.origin}")
    if params.by in ("volume", "dollar") and params.every < 1e-300:
        raise refuse("/params/every", f"every should be at least 1e-300, got {params.every!r}")


def _check_inputs(params: Bars, infos: Mapping[str, ArrayInfo]) -> None:
    ticks, smaller = ([name for name in names if name in infos] for names in (TICKS, (*SMALLER, "vwap")))
    if ticks and smaller:
        raise refuse(f"/inputs/{smaller[0]}", f"{ticks[0]} is of ticks and {smaller[0]} of bars: give one kind")
    for name in SMALLER if smaller else TICKS:
        if name not in infos:
            raise refuse(
                f"/inputs/{name}",
                f"bars need the input {name!r}: ticks are {' and '.join(TICKS)}, smaller bars {', '.join(SMALLER)}",
            )
    for name, other in (("session_open", "session_close"), ("session_close", "session_open")):
        if name in infos and other not in infos:
            raise refuse(f"/inputs/{other}", f"sessions need {name} and {other}")
    if "session_open" in infos and params.origin != 0:
        raise refuse("/params/origin", f"sessions begin bars at each open: leave out origin, got {params.origin}")
    if "session_open" in infos and infos["session_open"].shape != infos["session_close"].shape:
        opens, closes = (infos[name].shape[0] for name in ("session_open", "session_close"))
        raise refuse("/inputs/session_close", f"{opens} sessions open and {closes} close")


def _sizes(infos: Mapping[str, ArrayInfo]) -> tuple[int, int, int, int]:
    """The rows, the entries of each, the number of arrays with prices and sizes, and the bytes of their numbers."""
    names = values_of(infos)
    info = infos[names[0]]
    return (info.shape[0] if info.ndim == 2 else 1), info.shape[-1], len(names), ITEMSIZE[info.dtype]


def cost(params: Bars, infos: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of bars: the inputs, the most bars there can be, and the edges and sums that are kept meanwhile."""
    rows, time, _, itemsize = _sizes(infos)
    bars = rows * time if params.gaps == "omit" else most_bars(rows * time)
    given = sum(info.nbytes for info in infos.values())
    carry = 48 * bars if params.gaps == "last" else 0  # where the last close before each is
    cut = grid(params, infos)
    return Cost(
        bytes=given + carry + bars * (len(NUMBERS) * itemsize + 8) + 33 * max(time, bars // rows) + 16 * rows * time
        + cut.fixed + cut.each,
        work=float(rows * time),
    )  # fmt: skip


def rows_of_a_chunk(rows: int, time: int) -> int:
    """The rows of a chunk on a device, at least one."""
    return max(1, min(rows, CHUNK // time))


def grid(params: Bars, infos: Mapping[str, ArrayInfo]) -> Grid:  # noqa: ARG001
    """The grid of bars: whole rows, of as many bars as there are entries at most; besides them the edges of bars."""
    rows, time, arrays, itemsize = _sizes(infos)
    each = rows_of_a_chunk(rows, time)
    of_entry = (arrays + len(NUMBERS)) * itemsize + 8 + 1
    return Grid(-(-rows // each), each=each * time * of_entry, fixed=16 * time + _ROUNDING)


_START = 1_700_000_000 * SECOND
_TICKS: list[tuple[int, float, float]] = [  # seconds, price, size
    (0, 100.0, 5.0), (7, 100.5, 2.0), (31, 99.5, 4.0), (55, 100.25, 1.0), (62, 101.0, 8.0), (64, 101.5, 3.0),
    (190, 101.25, 6.0), (215, 100.75, 2.0), (238, 101.0, 2.0), (245, 102.0, 1.0),
]  # fmt: skip


def _example(dtype: str = "float64", **params: object) -> Example:
    columns = list(zip(*_TICKS, strict=True))
    return Example(
        params=params,
        inputs={
            "price": {"data": list(columns[1]), "dtype": dtype},
            "size": {"data": list(columns[2]), "dtype": dtype},
            "time": {"data": [_START + second * SECOND for second in columns[0]], "dtype": "int64"},
        },
    )


_ENTRIES = ("entry", "asset entry")
# How many bars there are, the data decide.
_BARS = ("bar", "asset bar")


def _input(name: str, doc: str) -> Input:
    return Input(name, doc, ("float64", "float32"), (1, 2), required=False, nan=True, axes=_ENTRIES)


def _prices(name: str, doc: str) -> Output:
    return Output(name, doc, axes=_BARS, dtype="same")


_OF_BARS = "of smaller bars, shape (bars) or (assets, bars)"

OPERATION = Operation(
    name="bars",
    compile_seconds=1,
    summary="Bars by time, count, volume or dollars with their VWAP, from ticks or from smaller bars",
    package="warpdesk_server.kernels.bars",
    params=Bars,
    inputs=(
        _input("price", "prices of ticks, shape (ticks)"),
        _input("size", "sizes of ticks, shape (ticks), at least 0"),
        *(_input(name, f"opening, highest, lowest or closing prices {_OF_BARS}") for name in SMALLER[:4]),
        _input("volume", f"volumes {_OF_BARS}, at least 0"),
        _input("vwap", f"average prices {_OF_BARS}; else (high + low + close) / 3. May be NaN where the volume is 0"),
        Input("time", "of each tick, or the start of each smaller bar: nanoseconds since 1970 UTC, not decreasing",
              ("int64",), (1,), axes=("entry",)),
        Input("session_open", "when sessions open: nanoseconds since 1970 UTC, ascending; entries outside the sessions "
              "are left out, and no bar spans two", ("int64",), (1,), required=False, axes=("session",)),
        Input("session_close", "when they close; an entry at that time is outside", ("int64",), (1,), required=False,
              axes=("session",)),
    ),
    outputs=(
        Output("time", "when a bar starts: (bars), int64 nanoseconds since 1970 UTC; by time its place in the grid, "
               "else that of its first entry", axes=("bar",), dtype="int64"),
        Output("close_time", "by time when a bar ends, which belongs to the next; else the time of its last entry",
               axes=("bar",), dtype="int64"),
        _prices("open", "first prices: (bars) or (assets, bars), of the inputs' dtype"),
        _prices("high", "highest prices"),
        _prices("low", "lowest prices"),
        _prices("close", "last prices"),
        _prices("volume", "sums of sizes"),
        _prices("vwap", "prices weighted by size; NaN where the volume is 0"),
        Output("count", "entries in each bar, int64", axes=_BARS, dtype="int64"),
        Output("complete", "1 where a bar can change no more: (bars), uint8", axes=("bar",), dtype="uint8"),
        Output("left_out", "times outside the sessions, or at which no asset has all its numbers", "value"),
    ),
    example=_example(by="time", every=60.0),
    cost=cost,
    check=check,
    grid=grid,
    batching=Batching(steps=2e6, alike=False),  # their times differ, and so do the numbers of their bars
    variants=(
        _example("float32", by="time", every=60.0),
        _example(by="volume", every=10.0),
    ),
)  # fmt: skip
