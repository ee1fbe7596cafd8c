"""The terms of a new secure-aggregation round: the creator's choices, and their validation."""

from dataclasses import dataclass
from typing import Literal

from warpdesk.secagg import graph
from warpdesk.secagg.quantisation import Quantisation

MOST_CLIENTS = 10_000
MOST_IN_A_COMPLETE_GRAPH = 1000  # clients that all share with all: a million shares


@dataclass(frozen=True)
class Bounds:
    """The limits of live rounds in the database: their number for one owner, and bytes of masked vectors for one owner
    and for all."""

    live: int
    owner_bytes: int
    all_bytes: int


@dataclass(frozen=True)
class NewRound:
    """The terms of a new round. Times are in seconds, one for each of the four phases in which clients send."""

    owner: str
    clients: int
    min_clients: int
    threshold: int | None  # of all clients, each sharing with each; None: graph and threshold by the rule
    dimension: int
    modulus_bits: Literal[32, 64]
    quantisation: Quantisation
    output: Literal["int", "float", "mean"]
    backend: Literal["auto", "gpu", "cpu"]
    deadlines: tuple[float, float, float, float]

    @property
    def bytes(self) -> int:
        """Bytes of all masked vectors of a new round."""
        return self.clients * self.dimension * self.modulus_bits // 8


def problems(new: NewRound) -> list[tuple[str, str]]:
    """Validate a new round's terms; returns each wrong field with a sentence."""
    found = list[tuple[str, str]]()
    if not graph.FEWEST_CLIENTS <= new.clients <= MOST_CLIENTS:
        found.append(("clients", f"{new.clients} clients are outside {graph.FEWEST_CLIENTS} to {MOST_CLIENTS}"))
    if not graph.FEWEST_CLIENTS <= new.min_clients <= new.clients:
        found.append(
            ("min_clients", f"min_clients {new.min_clients} is outside {graph.FEWEST_CLIENTS} to {new.clients} clients")
        )
    if new.threshold is not None:
        if new.clients > MOST_IN_A_COMPLETE_GRAPH:
            sentence = (
                f"of more than {MOST_IN_A_COMPLETE_GRAPH} clients each shares with some alone: leave threshold out"
            )
            found.append(("threshold", sentence))
        elif not graph.majority(new.clients) <= new.threshold <= new.min_clients:
            found.append(
                (
                    "threshold",
                    f"threshold {new.threshold} of {new.clients} clients must lie between "
                    f"{graph.majority(new.clients)}, more than half, and {new.min_clients}, the fewest there may be",
                )
            )
    if new.quantisation.bound < 1:
        found.append(("quantisation", "clip * scale rounds to 0: every vector would be zero"))
    largest, limit = overflow_proof(new)
    if largest > limit:
        found.append(
            (
                "quantisation",
                f"the sum could overflow: {new.clients} clients * weight {new.quantisation.max_weight} * "
                f"{new.quantisation.bound} (clip * scale) = {largest}, above {limit}, the largest mod "
                f"2**{new.modulus_bits}",
            )
        )
    if new.output == "mean" and new.quantisation.max_weight > 1:
        sentence = "a mean of weighted vectors needs the sum of their weights, which no round knows: ask for float"
        found.append(("output", sentence))
    return found


def overflow_proof(new: NewRound) -> tuple[int, int]:
    """The largest magnitude that the sum of a new round's vectors can have, and the largest that the modulus allows."""
    largest = new.clients * new.quantisation.max_weight * new.quantisation.bound
    return largest, (1 << (new.modulus_bits - 1)) - 1
