"""The type of a positive amount of privacy budget: an exact decimal string, where a JSON number would be rounded."""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

# At most 40 digits on either side and a short exponent: exact, and no string is costly to read.
_DECIMAL = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")

# The JSON Schema format that marks an amount: a number there is taken as it is written.
FORMAT = "decimal"


def _written(value: Any) -> Any:
    if type(value) is not int:
        return value
    if abs(value) > 10**30:  # its digits are not worth telling, and may be thousands
        raise PydanticCustomError("amount", "the number is outside 1e-30 to 1e30")
    return str(value)


def _positive(text: str) -> str:
    if not _DECIMAL.fullmatch(text):
        raise _refuse(text, "is not a decimal number such as '0.5' or '1e-3'")
    value = Decimal(text)
    if value <= 0:
        raise _refuse(text, "is not above zero")
    if not Decimal("1e-30") <= value <= Decimal("1e30"):
        raise _refuse(text, "is outside 1e-30 to 1e30")
    return text


def _refuse(text: str, why: str) -> PydanticCustomError:
    return PydanticCustomError("amount", "{text} {why}", {"text": repr(text), "why": why})


Amount = Annotated[
    str,
    Field(max_length=96),
    BeforeValidator(_written),
    AfterValidator(_positive),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "maxLength": 96}, {"type": "number", "exclusiveMinimum": 0}], "format": FORMAT}
    ),
]
