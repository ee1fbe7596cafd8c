"""The specification of secure_aggregation, which unmasks the sum of one round, and every reason to refuse it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate, product
from typing import Annotated, Literal

from pydantic import Field

from warpdesk.secagg.quantisation import MAX_KEYSTREAM_WORDS, Quantisation
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.params import EXACT, Params
from warpdesk_server.kernels.problems import InvalidRequest, Problem

STATEMENT = (
    "Sum of the named survivors' vectors, unmasked by seeds the caller passed in. The caller is trusted like the "
    "aggregation server: to follow the protocol, to name real clients, and never to collect both secrets of one. The "
    "sum is exact and carries no noise: secure aggregation is not differential privacy."
)

# Words of masked vectors in a chunk on a device. It changes no byte.
CHUNK = 1 << 24

ClientId = Annotated[int, Field(ge=0, lt=2**63)]


class SecureAggregation(Params):
    round_id: str = Field(min_length=1, max_length=128, description="name of the round, returned with the sum")
    modulus_bits: Annotated[Literal[32, 64], EXACT] = Field(description="vectors and masks live mod 2**modulus_bits")
    threshold: int = Field(
        ge=1,
        le=131_072,
        description="fewest survivors of a sharing set: all clients, or with a ring a client and its neighbours; more "
        "than half of it",
    )
    survivors: tuple[ClientId, ...] = Field(
        min_length=1,
        max_length=65_536,
        description="clients whose vectors are summed, one per row of masked and self_seeds",
    )
    dropped: tuple[ClientId, ...] = Field(
        (), max_length=65_536, description="clients that took part but sent no vector"
    )
    pairs: tuple[tuple[ClientId, ClientId], ...] = Field(
        (), max_length=524_288, description="(dropped, survivor) of each row of pair_seeds"
    )
    degree: int | None = Field(
        None, ge=2, multiple_of=2, description="neighbours of each client on the ring; null: everybody else"
    )
    ring: tuple[ClientId, ...] = Field(
        (),
        max_length=131_072,
        description="with degree: clients in the order of the ring, those too that shared no secrets and so masked "
        "with nobody",
    )
    quantisation: Quantisation
    output: Literal["int", "float", "mean"] = "float"
    total_weight: int | None = Field(
        None, ge=1, lt=2**63, description="sum of the survivors' weights; needed for a mean when max_weight is above 1"
    )

    @property
    def clients(self) -> int:
        return len(self.survivors) + len(self.dropped)

    @property
    def max_abs_sum(self) -> int:
        """The largest sum of all clients' vectors before masking: a round must not overflow, whichever clients drop
        out."""
        return self.clients * self.quantisation.max_weight * self.quantisation.bound

    @property
    def max_abs_sum_of_survivors(self) -> int:
        return len(self.survivors) * self.quantisation.max_weight * self.quantisation.bound

    @property
    def limit(self) -> int:
        return (1 << (self.modulus_bits - 1)) - 1


def check(params: SecureAggregation, inputs: Mapping[str, ArrayInfo]) -> None:
    """Raise InvalidRequest with every reason not to unmask this round."""
    problems = _ring(params)
    problems += [*_membership(params), *([] if problems else _pairs(params)), *_capacity(params)]
    problems += _shapes(params, inputs)
    if problems:
        raise InvalidRequest(*problems)


def _ring(params: SecureAggregation) -> list[Problem]:
    if params.degree is None:
        return [Problem("/params/ring", "a ring needs a degree")] if params.ring else []
    if params.degree >= len(params.ring) - 1:
        sentence = f"degree {params.degree} on a ring of {len(params.ring)} is everybody: leave degree and ring out"
        return [Problem("/params/degree", sentence)]
    if missing := sorted({*params.survivors, *params.dropped} - set(params.ring)):
        return [Problem("/params/ring", f"client {missing[0]} is not on the ring")]
    return []


def _membership(params: SecureAggregation) -> list[Problem]:
    problems = []
    for name, ids in (("survivors", params.survivors), ("dropped", params.dropped), ("ring", params.ring)):
        client, times = Counter(ids).most_common(1)[0] if ids else (0, 0)
        if times > 1:
            problems.append(Problem(f"/params/{name}", f"client {client} is named {times} times"))
    if both := sorted(set(params.survivors) & set(params.dropped)):
        problems.append(
            Problem(
                "/params/dropped", f"client {both[0]} is also a survivor: unmasking both ways would open its vector"
            )
        )
    if params.clients < 2:
        problems.append(
            Problem("/params/survivors", "a sum over one client is that client's vector: at least 2 are needed")
        )
    size = params.clients if params.degree is None else params.degree + 1
    least, whose = size // 2 + 1, "clients" if params.degree is None else "clients of a sharing set"
    if not least <= params.threshold <= size:
        problems.append(
            Problem(
                "/params/threshold",
                f"threshold {params.threshold} of {size} {whose} must lie between {least}, more than half, and {size}",
            )
        )
    elif params.degree is None and len(params.survivors) < params.threshold:
        problems.append(
            Problem(
                "/params/survivors", f"{len(params.survivors)} survivors are fewer than threshold {params.threshold}"
            )
        )
    elif params.degree is not None and not problems:
        problems += _sharing_sets(params, params.degree)
    return problems


def _sharing_sets(params: SecureAggregation, degree: int) -> list[Problem]:
    """The problem of unmasking a client whose secrets are shared by too few survivors, so that nobody could recover
    them."""
    survivors, ring = set(params.survivors), params.ring
    taking_part = survivors.union(params.dropped)
    around = [*ring[-(degree // 2) :], *ring, *ring[: degree // 2]]
    before = [0, *accumulate(client in survivors for client in around)]  # survivors among the first of them
    for place, client in enumerate(ring):
        left = before[place + degree + 1] - before[place]
        if client in taking_part and left < params.threshold:
            sentence = f"{left} survivors share secrets of client {client}, fewer than threshold {params.threshold}"
            return [Problem("/params/survivors", sentence)]
    return []


def _needed(params: SecureAggregation) -> Iterator[tuple[int, int]]:
    """The pairs of a dropped client and a survivor whose pair mask is in the sum."""
    degree, ring = params.degree, params.ring
    if degree is None:
        yield from product(params.dropped, params.survivors)
        return
    survivors, place = set(params.survivors), {client: at for at, client in enumerate(ring)}
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    for gone in params.dropped:
        others = (ring[(place[gone] + step) % len(ring)] for step in steps)
        yield from ((gone, other) for other in others if other in survivors)


def _pairs(params: SecureAggregation) -> list[Problem]:
    survivors, dropped = set(params.survivors), set(params.dropped)
    needed = None if params.degree is None else set(_needed(params))
    named: set[tuple[int, int]] = set()
    problems = []
    for row, pair in enumerate(params.pairs):
        gone, stayed = pair
        at = f"/params/pairs/{row}"
        if gone in survivors:
            problems.append(
                Problem(at, f"pair seeds of client {gone}, whose self seed is given too: both together open its vector")
            )
        elif gone not in dropped:
            problems.append(Problem(at, f"client {gone} is not among the dropped"))
        elif stayed not in survivors:
            problems.append(
                Problem(at, f"client {stayed} is not among the survivors: its mask is in none of the summed vectors")
            )
        elif needed is not None and pair not in needed:
            problems.append(Problem(at, f"clients {gone} and {stayed} are no neighbours on the ring"))
        elif pair in named:
            problems.append(Problem(at, f"the pair ({gone}, {stayed}) is named more than once"))
        named.add(pair)
        if len(problems) >= 10:
            return problems
    count = len(dropped) * len(survivors) if needed is None else len(needed)
    if not problems and len(named) < count:
        gone, stayed = next(pair for pair in _needed(params) if pair not in named)
        problems.append(
            Problem(
                "/params/pairs",
                f"{len(named)} of {count} pairs of a dropped client and a survivor are named; "
                f"({gone}, {stayed}) is missing",
            )
        )
    return problems


def _capacity(params: SecureAggregation) -> list[Problem]:
    quantisation = params.quantisation
    problems = []
    if quantisation.bound < 1:
        problems.append(Problem("/params/quantisation", "clip * scale rounds to 0: every vector would be zero"))
    if params.max_abs_sum > params.limit:
        problems.append(
            Problem(
                "/params/quantisation",
                f"the sum could overflow: {params.clients} clients * weight {quantisation.max_weight} * "
                f"{quantisation.bound} (clip * scale) = {params.max_abs_sum}, above {params.limit}, the largest mod "
                f"2**{params.modulus_bits}",
            )
        )
    if params.output == "mean" and quantisation.max_weight > 1 and params.total_weight is None:
        problems.append(Problem("/params/total_weight", "a mean of weighted vectors needs the sum of their weights"))
    if params.total_weight is not None and not (
        len(params.survivors) <= params.total_weight <= len(params.survivors) * quantisation.max_weight
    ):
        problems.append(
            Problem(
                "/params/total_weight",
                f"{len(params.survivors)} weights from 1 to {quantisation.max_weight} cannot add up to "
                f"{params.total_weight}",
            )
        )
    return problems


def _shapes(params: SecureAggregation, inputs: Mapping[str, ArrayInfo]) -> list[Problem]:
    masked, self_seeds = inputs["masked"], inputs["self_seeds"]
    problems = []
    if masked.dtype != f"uint{params.modulus_bits}":
        problems.append(Problem("/inputs/masked", f"dtype {masked.dtype}, but modulus_bits is {params.modulus_bits}"))
    if masked.shape[0] != len(params.survivors):
        problems.append(Problem("/inputs/masked", f"{masked.shape[0]} rows for {len(params.survivors)} survivors"))
    if self_seeds.shape != (len(params.survivors), 32):
        problems.append(
            Problem(
                "/inputs/self_seeds",
                f"shape {list(self_seeds.shape)}, expected [{len(params.survivors)}, 32]: a seed per survivor",
            )
        )
    pair_seeds = inputs.get("pair_seeds")
    if pair_seeds is None and params.pairs:
        problems.append(Problem("/inputs/pair_seeds", f"{len(params.pairs)} pairs are named, but no seeds are given"))
    if pair_seeds is not None and pair_seeds.shape != (len(params.pairs), 32):
        problems.append(
            Problem(
                "/inputs/pair_seeds",
                f"shape {list(pair_seeds.shape)}, expected [{len(params.pairs)}, 32]: a seed per pair",
            )
        )
    words = masked.shape[-1] * params.modulus_bits // 32
    if words > MAX_KEYSTREAM_WORDS:
        problems.append(
            Problem("/inputs/masked", f"{words} mask words per client, above the keystream's {MAX_KEYSTREAM_WORDS}")
        )
    return problems


def cost(_params: SecureAggregation, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of unmasking a round: masked vectors, seeds, the sum mod 2**b and its decoded form.

    Work counts words of keystream and of vectors.
    """
    rows, dim = inputs["masked"].shape
    itemsize = ITEMSIZE[inputs["masked"].dtype]
    arrays = sum(info.nbytes for info in inputs.values())
    return Cost(bytes=arrays + dim * (itemsize + 2 * 8), work=float(_masks(inputs) * dim * itemsize // 4 + rows * dim))


def _masks(inputs: Mapping[str, ArrayInfo]) -> int:
    """The number of masks that are left in the sum of the masked vectors."""
    return sum(inputs[name].shape[0] for name in ("self_seeds", "pair_seeds") if name in inputs)


def columns(rows: int, modulus_bits: int) -> int:
    """The number of columns in a chunk of masked vectors to unmask: whole ChaCha20 blocks."""
    of_block = 512 // modulus_bits
    return max(1, CHUNK // (rows * of_block)) * of_block


def grid_of(rows: int, dim: int, modulus_bits: int, masks: int) -> Grid:
    """The grid of unmasking: columns with their sum, and besides them the seed, nonce and sign of every mask."""
    width = columns(rows, modulus_bits)
    return Grid(-(-dim // width), each=(rows + 1) * min(width, dim) * modulus_bits // 8, fixed=40 * masks)


def grid(params: SecureAggregation, inputs: Mapping[str, ArrayInfo]) -> Grid:
    rows, dim = inputs["masked"].shape
    return grid_of(rows, dim, params.modulus_bits, _masks(inputs))


# Clients 1 and 2 sent [0.5, -1.25, 3, 8] and [1.5, 0.25, -3, 9], masked; the 9 was clipped to 8.
_MASKED_32 = [
    [731111645, 2835419503, 1553870331, 1113916755],
    [2754069060, 4285234281, 2404091073, 2850381377],
]
_MASKED_64 = [
    [4800184558361724949, 15144440241418620384, 13720996656520211617, 11406028373652846796],
    [7336327979104230156, 1877586995740763356, 1739437175779455248, 3521493421749938845],
]


def _example(modulus_bits: int, masked: list[list[int]]) -> Example:
    return Example(
        params={
            "round_id": "example",
            "modulus_bits": modulus_bits,
            "threshold": 2,
            "survivors": [1, 2],
            "dropped": [3],
            "pairs": [[3, 1], [3, 2]],
            "quantisation": {"clip": "8", "scale": "65536", "max_weight": 1},
            "output": "float",
        },
        inputs={
            "masked": {"data": masked, "dtype": f"uint{modulus_bits}"},
            "self_seeds": {"data": [[17] * 32, [18] * 32], "dtype": "uint8"},
            "pair_seeds": {
                "data": [
                    list(bytes.fromhex("260d61aea3ff45c5535a1e9d0a92a039400c4c66adea79ca0ef7c04f95b2f633")),
                    list(bytes.fromhex("78698cdf082fbffe12120d1462f82b35aee63f1c269713e30df369b914b8eb1f")),
                ],
                "dtype": "uint8",
            },
        },
    )


OPERATION = Operation(
    name="secure_aggregation",
    compile_seconds=1,
    summary="Sum masked vectors mod 2^32 or 2^64, remove the masks of survivors and dropped clients, decode",
    package="warpdesk_server.kernels.secure_aggregation",
    params=SecureAggregation,
    inputs=(
        Input(
            "masked",
            "masked vectors, one row per survivor: (survivors, dim)",
            ("uint32", "uint64"),
            (2,),
            axes=("survivor element",),
        ),
        Input(
            "self_seeds",
            "seeds of the survivors' self masks: (survivors, 32)",
            ("uint8",),
            (2,),
            secret=True,
            axes=("survivor byte",),
        ),
        Input(
            "pair_seeds",
            "seeds shared by a dropped client and a survivor: (pairs, 32)",
            ("uint8",),
            (2,),
            required=False,
            secret=True,
            axes=("pair byte",),
        ),
    ),
    outputs=(
        Output(
            "sum",
            "sum of the survivors' vectors: int64, or float64 for output float and mean: (dim,)",
            axes=("element",),
            dtype=lambda params: "int64" if params.output == "int" else "float64",
        ),
        Output("survivors", "the clients summed", "value"),
        Output(
            "overflow_proof",
            "{max_abs_sum, limit}: the largest magnitude the sum can have, and the modulus allows",
            "value",
        ),
        Output("round_id", "the round named in the request", "value"),
        Output("statement", "what this result protects and what it does not", "value"),
    ),
    example=_example(32, _MASKED_32),
    cost=cost,
    check=check,
    grid=grid,
    batching=Batching(steps=1e7, alike=False),  # each has seeds of its own
    variants=(_example(64, _MASKED_64),),
)
