"""The specification of federated_average: an exact average of clients' updates, central noise, an optimiser step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from warpdesk.models import DType
from warpdesk_server.kernels.array import ITEMSIZE, ArrayInfo
from warpdesk_server.kernels.batching import Batching
from warpdesk_server.kernels.federated_average.params import FederatedAverage
from warpdesk_server.kernels.operation import Cost, Example, Grid, Input, Operation, Output
from warpdesk_server.kernels.problems import InvalidRequest, Problem
from warpdesk_server.kernels.spend import Spend

# Numbers of updates in a chunk on a device, whole updates of them, and elements of the average. It changes no byte.
CHUNK = 1 << 22
BLOCK = 8192  # numbers whose squares are added up in 64 bits: three sums of at most 2**50 each
DRAW = 16.0  # to draw noise for an element takes about as long as to add so many numbers

_NUMBERS: tuple[DType, ...] = ("float64", "float32")


def check(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> None:
    """Check the inputs of a federated average. Raises InvalidRequest with every problem."""
    problems = [*_sources(params, inputs)]
    if not problems:
        problems += [*_lengths(params, inputs), *_weight_of_round(params)]
    if problems:
        raise InvalidRequest(*problems)
    if params.dp is not None:
        # Not at the top of the module: mpmath, which plans need, is slow to import.
        from warpdesk_server.kernels.federated_average.plan import plan

        plan(params, *size(params, inputs))


def _sources(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    if params.round is None:
        if "updates" not in inputs:
            yield Problem("/inputs/updates", "federated_average needs updates, or the sum of a round and its params")
        if "sum" in inputs:
            yield Problem("/inputs/sum", "the sum of a round needs the field round, which says how to read it")
    else:
        if "sum" not in inputs:
            yield Problem("/inputs/sum", "the field round is given, but not the sum of that round")
        for name in ("updates", "weights"):
            if name in inputs:
                yield Problem(f"/inputs/{name}", f"the sum of a round already includes its {name}")


def _lengths(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> Iterator[Problem]:
    clients, width = size(params, inputs)
    if "weights" in inputs and inputs["weights"].shape != (clients,):
        yield Problem("/inputs/weights", f"{inputs['weights'].shape[0]} weights for {clients} updates")
    state = [name for name in ("model", "first_moment", "second_moment") if name in inputs]
    for name in state:
        if inputs[name].shape != (width,):
            yield Problem(f"/inputs/{name}", f"{inputs[name].shape[0]} numbers, and the updates have {width}")
    if params.strategy == "fedavg":
        for name in state:
            if name != "model":
                yield Problem(f"/inputs/{name}", "strategy fedavg has no moments")
    elif "model" not in inputs:
        yield Problem("/inputs/model", "strategy fedadam needs the model that it moves")
    elif len(state) == 2:
        missing = "second_moment" if "first_moment" in inputs else "first_moment"
        yield Problem(f"/inputs/{missing}", "give both moments of the round before, or in a first round neither")


def _weight_of_round(params: FederatedAverage) -> Iterator[Problem]:
    if params.round is None:
        return
    round_, quantisation = params.round, params.round.quantisation
    if quantisation.bound < 1:
        yield Problem("/params/round/quantisation", "clip * scale rounds to 0: every vector would be zero")
    if params.dp is None and quantisation.max_weight > 1 and round_.total_weight is None:
        yield Problem("/params/round/total_weight", "a mean of weighted vectors needs the sum of their weights")
    most = round_.survivors * quantisation.max_weight
    if round_.total_weight is not None and not round_.survivors <= round_.total_weight <= most:
        yield Problem(
            "/params/round/total_weight",
            f"{round_.survivors} weights from 1 to {quantisation.max_weight} cannot add up to {round_.total_weight}",
        )


def size(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> tuple[int, int]:
    """The number of clients in a federated average, and the length of an update."""
    if params.round is not None:
        return params.round.survivors, inputs["sum"].shape[0]
    rows, width = inputs["updates"].shape
    return rows, width


def spend(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> Spend | None:
    """The budget charge of a noisy average, at least the cost of its noise; None if it names no budget."""
    if params.budget is None:
        return None
    from warpdesk_server.kernels.federated_average.plan import charged

    return charged(params, *size(params, inputs))


@dataclass(frozen=True)
class Chunks:
    """The cut of a federated average: `summing` chunks of `rows` updates, then `finishing` chunks of CHUNK elements."""

    rows: int
    summing: int
    finishing: int


def cut(params: FederatedAverage, clients: int, width: int) -> Chunks:
    finishing = -(-width // CHUNK)
    if params.round is not None:
        return Chunks(0, 0, finishing)
    rows = max(1, CHUNK // width)
    return Chunks(rows, -(-clients // rows), finishing)


def grid(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> Grid:
    """The grid of a federated average, in bytes of device memory.

    A chunk holds updates with two numbers each and the sums of their squares, or elements of the average with the
    optimiser's state. Besides chunks there are the sum, or the key and a flag.
    """
    clients, width = size(params, inputs)
    chunks = cut(params, clients, width)
    states = 1 + sum(name in inputs for name in ("model",)) + (2 if params.strategy == "fedadam" else 0)
    each, fixed = 8 * states * min(width, CHUNK), 36
    if params.round is None:
        of_client = ITEMSIZE[inputs["updates"].dtype] * width + 16
        if params.dp is not None:
            of_client += 24 * -(-width // BLOCK)
        each, fixed = max(each, min(chunks.rows, clients) * of_client), max(fixed, 8 * width)
    return Grid(chunks.summing + chunks.finishing, each, fixed)


def cost(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> Cost:
    """The cost of a federated average.

    Bytes: inputs, the sum in steps, the average, the optimiser's state before and after, and for each client two
    numbers and the sums of squares. Work counts numbers added.
    """
    clients, width = size(params, inputs)
    arrays = sum(info.nbytes for info in inputs.values())
    held = 8 * width * (3 + 6 * (params.strategy == "fedadam") + 2 * ("model" in inputs))
    of_clients = 0 if params.round is not None else clients * (32 + 24 * -(-width // BLOCK))
    work = DRAW * width if params.dp is not None else float(width)
    if params.round is None:
        work += float(clients * width) * (1 if params.dp is None else 2)
    return Cost(bytes=arrays + held + of_clients, work=work)


def sizes(params: FederatedAverage, inputs: Mapping[str, ArrayInfo]) -> dict[str, int]:
    """The lengths of what the next round needs: of the model, and of the moments of fedadam."""
    width = size(params, inputs)[1]
    return {"parameter": width * ("model" in inputs), "moment": width * (params.strategy == "fedadam")}


def _state(name: str, doc: str) -> Input:
    return Input(name, doc, _NUMBERS, (1,), required=False, axes=("element",))


_UPDATES = {"data": [[1.0, -2.0, 0.5], [0.25, 4.0, -1.5], [8.0, 0.0, 2.0]], "dtype": "float64"}
_WEIGHTS = {"data": [3.0, 5.0, 2.0], "dtype": "float64"}
_MODEL = {"data": [0.5, 0.0, -0.5], "dtype": "float64"}
_NOISE = {
    "clip": "2",
    "max_weight": "4",
    "expected_weight": "10",
    "neighbouring": "add_remove",
    "noise_multiplier": "1",
}

OPERATION = Operation(
    name="federated_average",
    compile_seconds=1,
    summary="Average clients' updates exactly, or clipped and with central noise; FedAvg and FedAdam",
    package="warpdesk_server.kernels.federated_average",
    params=FederatedAverage,
    inputs=(
        Input(
            "updates",
            "one client's update in each row: (n, d)",
            _NUMBERS,
            (2,),
            required=False,
            axes=("client element",),
        ),
        Input(
            "weights",
            "weight of each client, 1 where none are given: (n,)",
            ("float64", "float32", "int64", "int32", "uint32", "uint8"),
            (1,),
            required=False,
            axes=("client",),
        ),
        Input(
            "sum",
            "instead of updates: the sum of a round with output int: (d,)",
            ("int64",),
            (1,),
            required=False,
            axes=("element",),
        ),
        _state("model", "the model before this round: (d,)"),
        _state("first_moment", "of fedadam, from the round before: (d,)"),
        _state("second_moment", "of fedadam, from the round before: (d,)"),
    ),
    outputs=(
        Output("average", "float64: the weighted average of the updates: (d,)", axes=("element",)),
        Output("model", "float64: the model after this round: (d,); empty where none was given", axes=("parameter",)),
        Output("first_moment", "float64: for the next round of fedadam: (d,); empty for fedavg", axes=("moment",)),
        Output("second_moment", "float64: for the next round of fedadam: (d,); empty for fedavg", axes=("moment",)),
        Output("total_weight", "what the sum was divided by: the true total, or with dp expected_weight", "value"),
        Output("mechanism", "discrete_gaussian, or null without dp", "value"),
        Output("scale", "sigma of the noise on the average: exact rational and number; null without dp", "value"),
        Output("grid", "what one integer step is worth in the average; null without dp", "value"),
        Output("sensitivity", "{norm, grid_units, value} of the average, rounding included; null without dp", "value"),
        Output(
            "sensitivity_source",
            "enforced (updates were clipped here) or declared (the round's clients clip); null without dp",
            "value",
        ),
        Output("neighbouring", "the relation the sensitivity is for; null without dp", "value"),
        Output(
            "spent",
            "rho of this average, and epsilon where a delta was given, at most what was asked; null without dp",
            "value",
        ),
        Output(
            "accuracy_95",
            "with probability 95 % the noise on one coordinate of the average is smaller; null without dp",
            "value",
        ),
        Output("server_learned", "what this service saw to compute the average", "value"),
        Output("statement", "what this result promises and what it does not", "value"),
        Output("unaccounted", "true: no budget was charged; false: one was; null without dp", "value"),
    ),
    example=Example(inputs={"updates": _UPDATES, "weights": _WEIGHTS, "model": _MODEL}),
    cost=cost,
    check=check,
    grid=grid,
    sizes=sizes,
    batching=Batching(steps=5e5, alike=False),  # each has a key of its own
    # Updates are private with noise and without: they are overwritten in memory, and no two jobs share an answer.
    randomness="private",
    spend=spend,
    release_version="federated_average/1",
    variants=(
        Example(
            params={"strategy": "fedadam", "dp": _NOISE, "unaccounted": True},
            inputs={"updates": _UPDATES, "weights": _WEIGHTS, "model": _MODEL},
        ),
        Example(
            params={
                "round": {"survivors": 3, "quantisation": {"clip": "8", "scale": "65536"}},
                "dp": {key: value for key, value in _NOISE.items() if key != "max_weight"},
                "unaccounted": True,
            },
            inputs={"sum": {"data": [606208, 131072, 65536], "dtype": "int64"}, "model": _MODEL},
        ),
    ),
)
