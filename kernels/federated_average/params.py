"""The parameters of federated_average: the server's strategy, central noise, and the round that a sum comes from."""

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from warpdesk.amount import Amount
from warpdesk.models import Neighbouring
from warpdesk.secagg.quantisation import Quantisation
from warpdesk_server.kernels.params import EXACT, Params
from warpdesk_server.kernels.spend import BudgetId

_ADAM = ("beta1", "beta2", "tau")
_CALIBRATIONS = ("epsilon", "rho", "noise_multiplier")


class Noise(Params):
    """Central noise: every update is scaled down to `clip`, every weight cut to `max_weight`, the divisor is fixed."""

    clip: Amount = Field(description="largest L2 norm of a client's update, a decimal string in its unit")
    max_weight: Amount | None = Field(
        None, description="largest weight of a client, a decimal string; 1 where none is given. A round has its own"
    )
    expected_weight: Amount = Field(
        description="what the sum is divided by, a decimal string: the expected total weight, never the true one"
    )
    neighbouring: Neighbouring = Field(
        description="replacing a client has twice the sensitivity of adding or removing one"
    )
    epsilon: Amount | None = Field(None, description="with delta: budget of approximate DP, a decimal string")
    delta: Amount | None = Field(
        None, description="beside epsilon; or beside noise_multiplier, so that epsilon is what is charged"
    )
    rho: Amount | None = Field(None, description="zero-concentrated-DP budget of this average, a decimal string")
    noise_multiplier: Amount | None = Field(
        None, description="standard deviation of the noise over the sensitivity, a decimal string: rho = 1 / (2 z**2)"
    )

    @property
    def given(self) -> str:
        return next(name for name in _CALIBRATIONS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _is_calibrated_once(self) -> Self:
        given = [name for name in _CALIBRATIONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of epsilon, rho and noise_multiplier is needed, got {', '.join(given) or 'none'}"
            )
        if given[0] == "epsilon" and self.delta is None:
            raise ValueError("epsilon is taken with a delta: Gaussian noise has no pure epsilon")
        if given[0] == "rho" and self.delta is not None:
            raise ValueError("rho is taken without a delta: epsilon and delta, rho, or noise_multiplier")
        if self.delta is not None and Decimal(self.delta) >= 1:
            raise ValueError(f"delta {self.delta!r} is not below one")
        return self


class Round(Params):
    """The round of secure aggregation that a sum comes from. What its clients did cannot be checked here."""

    survivors: int = Field(ge=2, le=65_536, description="clients whose vectors are in the sum")
    quantisation: Quantisation
    total_weight: int | None = Field(
        None, ge=1, lt=2**63, description="sum of the survivors' weights; without noise and with max_weight above 1"
    )

    @property
    def max_abs_sum(self) -> int:
        return self.survivors * self.quantisation.max_weight * self.quantisation.bound


class FederatedAverage(Params):
    strategy: Literal["fedavg", "fedadam"] = Field(
        "fedavg",
        description="fedavg: the model moves by learning_rate * average; fedadam: Adam with the average as gradient",
    )
    learning_rate: float = Field(1.0, gt=0, description="of the server: how far the model moves")
    beta1: float | None = Field(None, ge=0, lt=1, description="fedadam: decay of the first moment, 0.9")
    beta2: float | None = Field(None, ge=0, lt=1, description="fedadam: decay of the second moment, 0.99")
    tau: float | None = Field(None, gt=0, description="fedadam: added to the root of the second moment, 0.001")
    round: Round | None = Field(None, description="for the input sum: what the round that gave it says of it")
    dp: Noise | None = Field(None, description="central noise; without it the average is exact")
    budget: BudgetId | None = Field(None, description="with dp: the budget that is charged, once for each answer")
    unaccounted: Annotated[Literal[True], EXACT] | None = Field(
        None, description="with dp, true: no budget is charged, and every further average adds to what is learnt"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.strategy == "fedavg":
            for name in _ADAM:
                if getattr(self, name) is not None:
                    raise ValueError(f"strategy fedavg does not take {name}")
        given = [name for name in ("budget", "unaccounted") if getattr(self, name) is not None]
        if self.dp is None and given:
            raise ValueError(f"{given[0]} is for dp: an average without noise charges no budget")
        if self.dp is not None and len(given) != 1:
            raise ValueError(
                "with dp exactly one of budget and unaccounted is needed: name the budget to charge, or set "
                f"unaccounted to true; got {'both' if given else 'none'}"
            )
        if self.round is not None and self.dp is not None:
            given_too = {"dp.max_weight": self.dp.max_weight, "round.total_weight": self.round.total_weight}
            for what, amount in given_too.items():
                if amount is not None:
                    raise ValueError(
                        f"a round with dp does not take {what}: its weights are bounded by quantisation.max_weight, "
                        "and the sum is divided by expected_weight"
                    )
        return self

    @property
    def decay(self) -> tuple[float, float, float]:
        """The server optimiser's beta1, beta2 and tau for a federated average; the defaults are those of Reddi et al.
        (2021), section 4."""
        beta1 = 0.9 if self.beta1 is None else self.beta1
        return beta1, 0.99 if self.beta2 is None else self.beta2, 1e-3 if self.tau is None else self.tau
