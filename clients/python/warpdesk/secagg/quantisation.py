"""The quantisation of a round of secure aggregation: how a vector of floats becomes one of integers."""

from decimal import ROUND_HALF_EVEN, Context, Decimal

from pydantic import Field

from warpdesk.amount import Amount
from warpdesk.models import Body

# The counter of ChaCha20 has 32 bits and a block holds sixteen 32-bit words (RFC 8439).
MAX_KEYSTREAM_WORDS = 2**36


class Quantisation(Body):
    """A client sends round(clip(x, -clip, clip) * scale) * weight, an integer, with 1 <= weight <= max_weight."""

    clip: Amount = Field(description="largest magnitude of a coordinate, a decimal string")
    scale: Amount = Field(description="integers per unit, a decimal string such as '65536'")
    max_weight: int = Field(1, ge=1, lt=2**32, description="largest weight a client may multiply its vector by")

    @property
    def bound(self) -> int:
        """The largest magnitude of one coordinate of a client's quantised vector of weight 1: round(clip * scale), ties
        to even."""
        product = Context(prec=200).multiply(Decimal(self.clip), Decimal(self.scale))
        return int(product.to_integral_value(rounding=ROUND_HALF_EVEN))
