"""The specification of Shamir's secret sharing: any `threshold` shares give the values back, fewer reveal nothing."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from warpdesk.amount import Amount
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem, refuse
from warpdesk_server.kernels.shamir.field import DTYPE, PRIME

# So x fits in 8 bits, and four steps of Horner's rule fit in 64 bits: 2^31 (255^4 + ... + 255 + 1) < 2^63.
MOST_SHARES = 255

# Words of shares in a chunk on a device. It changes no byte.
CHUNK = 1 << 24

# Elements whose coefficients come from the same blocks of keystream, twice (shamir.cu): chunks are multiples of it.
TILES: dict[str, int] = {"m31": 512, "m61": 256}

# The counter of ChaCha20 has 32 bits; a block holds a coefficient of 16 elements, or of 8.
MOST_ELEMENTS: dict[str, int] = {"m31": 2**36, "m61": 2**35}

_DRAW = 5.0  # to draw a coefficient takes about as long as so many multiplications

FieldName = Annotated[
    Literal["m31", "m61"], Field(description="prime field: m31 is 2**31 - 1 (uint32), m61 is 2**61 - 1 (uint64)")
]
Scale = Annotated[
    Amount | None,
    Field(description="fixed point: integers per unit, a decimal string such as '65536'; floats need it"),
]


class ShamirShare(Params):
    field: FieldName
    threshold: int = Field(ge=2, le=MOST_SHARES, description="how many shares give the values back")
    shares: int = Field(ge=2, le=MOST_SHARES, description="how many shares are made, those of x = 1 to this number")
    scale: Scale = None


class ShamirReconstruct(Params):
    field: FieldName
    threshold: int = Field(ge=2, le=MOST_SHARES, description="the threshold the values were shared with")
    x: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=2, max_length=MOST_SHARES, description="x of each row of shares; all different"
    )
    scale: Scale = None
    correct: bool = Field(
        False, description="true: shares that are found to be corrupted are named and left out; false: they are refused"
    )

    @property
    def extra(self) -> int:
        """The number of shares beyond the threshold, which serve to check the others."""
        return len(self.x) - self.threshold

    @property
    def nameable(self) -> int:
        """The number of corrupted Shamir shares that can be identified."""
        return self.extra // 2


def check_share(params: ShamirShare, inputs: Mapping[str, ArrayInfo]) -> None:
    """Check the inputs of shamir_share. Raises InvalidRequest for too few shares, and for floats without a scale."""
    values, problems = inputs["values"], []
    if params.threshold > params.shares:
        problems.append(
            Problem("/params/threshold", f"{params.shares} shares could never reach the threshold {params.threshold}")
        )
    real = values.dtype.startswith("float")
    if real and params.scale is None:
        problems.append(Problem("/params/scale", f"values of dtype {values.dtype} need a scale"))
    if not real and params.scale is not None:
        problems.append(Problem("/params/scale", f"values of dtype {values.dtype} are integers: leave out scale"))
    if values.size > MOST_ELEMENTS[params.field]:
        problems.append(
            Problem(
                "/inputs/values",
                f"{values.size} elements, above the keystream's {MOST_ELEMENTS[params.field]} for {params.field}",
            )
        )
    if problems:
        raise InvalidRequest(*problems)


def check_reconstruct(params: ShamirReconstruct, inputs: Mapping[str, ArrayInfo]) -> None:
    """Check the inputs of shamir_reconstruct. Raises InvalidRequest with every reason why the shares are not enough."""
    shares, problems, prime = inputs["shares"], [], PRIME[params.field]
    if shares.dtype != DTYPE[params.field]:
        problems.append(
            Problem("/inputs/shares", f"dtype {shares.dtype}, but shares in {params.field} are {DTYPE[params.field]}")
        )
    if shares.shape[0] != len(params.x):
        problems.append(Problem("/inputs/shares", f"{shares.shape[0]} rows for {len(params.x)} numbers x"))
    problems += [
        Problem(f"/params/x/{at}", f"x = {x} is not below {prime}, the prime of {params.field}")
        for at, x in enumerate(params.x)
        if x >= prime
    ]
    x, times = Counter(params.x).most_common(1)[0]
    if times > 1:
        problems.append(Problem("/params/x", f"x = {x} is named {times} times: one share counts once"))
    elif len(params.x) < params.threshold:
        problems.append(Problem("/params/x", f"{len(params.x)} shares are fewer than the threshold {params.threshold}"))
    if problems:
        raise InvalidRequest(*problems)


def refused_values(params: ShamirShare, outside: int, size: int) -> InvalidRequest:
    """The refusal of values too large for Shamir shares: it says how many, never which, since messages are logged and
    stored."""
    most = PRIME[params.field] // 2
    what = f"{outside} of {size} values are beyond +-{most}"
    if params.scale is not None:
        what = f"{outside} of {size} values are beyond +-{most} when multiplied by the scale {params.scale}"
    return refuse("/inputs/values", f"{what}, the largest integer that {params.field} can hold")


def cost_share(params: ShamirShare, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of shamir_share: the values, their integers and the shares. Work counts multiplications."""
    values, word = inputs["values"], ITEMSIZE[DTYPE[params.field]]
    steps = (params.threshold - 1) * (_DRAW + params.shares)
    return Cost(bytes=values.nbytes + values.size * (8 + params.shares * word), work=values.size * steps)


def cost_reconstruct(params: ShamirReconstruct, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of shamir_reconstruct: shares and values. Work counts multiplications, and words read."""
    shares = inputs["shares"]
    rows, size = shares.shape
    steps = max(params.extra + 1, 1) * params.threshold + rows
    return Cost(bytes=shares.nbytes + 8 * size, work=float(steps) * size)


def width(field: str, rows: int) -> int:
    """The number of elements in a chunk of `rows` Shamir shares."""
    return max(1, CHUNK // (rows * TILES[field])) * TILES[field]


def grid_share(params: ShamirShare, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of shamir_share: elements with their shares, and besides them the key and a count."""
    size, of_chunk = inputs["values"].size, width(params.field, params.shares)
    each = min(size, of_chunk) * (8 + params.shares * ITEMSIZE[DTYPE[params.field]])
    return Grid(-(-size // of_chunk), each=each, fixed=32 + 8)


def grid_reconstruct(params: ShamirReconstruct, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of shamir_reconstruct: elements of all shares with their value; besides, the weights and findings."""
    rows, size = inputs["shares"].shape
    of_chunk, word = width(params.field, rows), ITEMSIZE[DTYPE[params.field]]
    fixed = word * (params.extra + 1) * params.threshold + 8 * (2 + rows)
    return Grid(-(-size // of_chunk), each=min(size, of_chunk) * (8 + rows * word), fixed=fixed)


def _share(params: dict[str, object], data: list[object], dtype: str) -> Example:
    return Example(params=params, inputs={"values": {"data": data, "dtype": dtype}})


def _reconstruct(params: dict[str, object], data: list[list[int]]) -> Example:
    return Example(params=params, inputs={"shares": {"data": data, "dtype": DTYPE[str(params["field"])]}})


SHARE = Operation(
    name="shamir_share",
    compile_seconds=2,
    summary="Split every value of an array into shares over 2^31 - 1 or 2^61 - 1, some of which give it back",
    package="warpdesk_server.kernels.shamir",
    params=ShamirShare,
    inputs=(
        Input(
            "values",
            "integers, or floats with a scale: (n,)",
            ("float64", "float32", "int64", "int32", "uint32", "uint8"),
            (1,),
            secret=True,
            axes=("element",),
        ),
    ),
    outputs=(
        Output(
            "shares",
            "share of x = 1, 2, ... in row 0, 1, ...: (shares, n), uint32 for m31, uint64 for m61",
            axes=("share element",),
            dtype=lambda params: DTYPE[params.field],
        ),
        Output("x", "x of each row", "value"),
        Output("statement", "what this result protects and what it does not", "value"),
    ),
    example=_share({"field": "m31", "threshold": 2, "shares": 3}, [250, -3, 1_000_000, 0], "int64"),
    cost=cost_share,
    check=check_share,
    grid=grid_share,
    sizes=lambda params, _inputs: {"share": params.shares},
    batching=Batching(steps=2e7, alike=False),  # each has a key of its own
    randomness="private",
    variants=(
        _share({"field": "m61", "threshold": 2, "shares": 3, "scale": "1048576"}, [0.5, -1234.25, 0.1, 1e6], "float64"),
    ),
)

RECONSTRUCT = Operation(
    name="shamir_reconstruct",
    compile_seconds=2,
    summary="Give an array back from its shares; every share beyond the threshold is checked, corrupted ones are named",
    package="warpdesk_server.kernels.shamir",
    params=ShamirReconstruct,
    inputs=(
        Input(
            "shares", "one row per share: (shares, n)", ("uint32", "uint64"), (2,), secret=True, axes=("share element",)
        ),
    ),
    outputs=(
        Output(
            "values",
            "int64, or float64 where a scale is given: (n,)",
            axes=("element",),
            dtype=lambda params: "int64" if params.scale is None else "float64",
        ),
        Output("extra", "how many shares beyond the threshold every element was checked against", "value"),
        Output("corrupted", "x of the shares that were found to be corrupted and left out", "value"),
        Output("inconsistent", "how many elements the shares given disagree at", "value"),
        Output("statement", "what was checked and what cannot be", "value"),
    ),
    example=_reconstruct(
        {"field": "m31", "threshold": 2, "x": [1, 2, 3]},
        # Of [250, -3, 1_000_000, 0].
        [
            [721923607, 2017065065, 117908613, 78492748],
            [1443846964, 1886646486, 234817226, 156985496],
            [18286674, 1756227907, 351725839, 235478244],
        ],
    ),
    cost=cost_reconstruct,
    check=check_reconstruct,
    grid=grid_reconstruct,
    batching=Batching(steps=2e7, alike=False),  # what was found belongs to one job
    variants=(
        _reconstruct(
            {"field": "m61", "threshold": 2, "x": [1, 2, 3], "scale": "1048576"},
            # Of [0.5, -1234.25, 0.1, 1e6], the third to within half of 2^-20.
            [
                [784687173479673117, 1702523787021777004, 1295159229450648543, 1664192859574481996],
                [1569374346958821946, 1099204566124064985, 284475449687498277, 1022541661359270041],
                [48218511224276824, 495885345226352966, 1579634679138041962, 380890463144058086],
            ],
        ),
    ),
)
OPERATIONS: tuple[Operation, ...] = (SHARE, RECONSTRUCT)
