"""Play the clients of a round, so that a test can act as the server."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdesk.secagg.masking import ClientSecret, add_masks, new_secret, pair_seed
from warpdesk.secagg.quantisation import Quantisation
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.secure_aggregation.spec import OPERATION, SecureAggregation


@dataclass(frozen=True)
class Round:
    """Clients with their integers, all masked; `request` is what an honest server sends once some have dropped out.

    With `ring` each masks with its nearest `degree` on it; who is on the ring and has no vector masks with nobody.
    """

    vectors: dict[int, npt.NDArray[np.int64]]
    bits: int
    bound: int
    round_id: str = "round"
    secrets: dict[int, ClientSecret] = field(default_factory=dict)
    degree: int | None = None
    ring: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for client in self.vectors:
            self.secrets.setdefault(client, new_secret())

    @property
    def roster(self) -> dict[int, bytes]:
        return {client: secret.public for client, secret in self.secrets.items()}

    def masked(self, client: int) -> npt.NDArray[Any]:
        around = {other: public for other, public in self.roster.items() if self.together(client, other)}
        return add_masks(self.vectors[client], client, self.secrets[client], around, self.round_id, self.bits)

    def together(self, one: int, other: int) -> bool:
        """Whether two clients mask with each other; each does with itself."""
        if self.degree is None:
            return True
        apart = abs(self.ring.index(one) - self.ring.index(other))
        return min(apart, len(self.ring) - apart) <= self.degree // 2

    def request(
        self, dropped: tuple[int, ...] = (), **params: Any
    ) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        survivors = [client for client in self.vectors if client not in dropped]
        pairs = [(gone, stayed) for gone in dropped for stayed in survivors if self.together(gone, stayed)]
        inputs = {
            "masked": np.stack([self.masked(client) for client in survivors]),
            "self_seeds": _rows([self.secrets[client].self_seed for client in survivors]),
        }
        if pairs:
            # Survivors reveal these: each recomputes the seed it shares with a client that dropped out.
            seeds = [
                pair_seed(stayed, self.secrets[stayed].private, gone, self.roster[gone], self.round_id)
                for gone, stayed in pairs
            ]
            inputs["pair_seeds"] = _rows(seeds)
        request = {
            "round_id": self.round_id,
            "modulus_bits": self.bits,
            "threshold": (len(self.vectors) if self.degree is None else self.degree + 1) // 2 + 1,
            "survivors": survivors,
            "dropped": list(dropped),
            "pairs": pairs,
            "quantisation": {"clip": str(self.bound), "scale": "1"},
            "output": "int",
            **({} if self.degree is None else {"degree": self.degree, "ring": list(self.ring)}),
            **params,
        }
        return request, inputs


def validate(params: dict[str, Any], inputs: dict[str, npt.NDArray[Any]]) -> SecureAggregation:
    described = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}  # type: ignore[arg-type]
    parsed = OPERATION.validate(params, described)
    assert isinstance(parsed, SecureAggregation)
    return parsed


def unit(bound: int = 1000) -> Quantisation:
    return Quantisation(clip=str(bound), scale="1", max_weight=1)


def _rows(seeds: list[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(seeds), np.uint8).reshape(-1, 32)
