"""The base of every operation's parameters: strict types, also for literals."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError


class Params(BaseModel):
    """Base of every operation's parameters: strict types, no unknown field, no NaN, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _of_its_type(value: Any, literal: ValidatorFunctionWrapHandler) -> Any:
    member = literal(value)
    if type(member) is not type(value):
        kind = {"bool": "boolean", "int": "integer"}.get(type(member).__name__, "value")
        raise PydanticCustomError(
            "exact_literal", "Input should be the {kind} {member}", {"kind": kind, "member": json.dumps(member)}
        )
    return member


# A Literal accepts equal values of another type, even in strict mode: 1 for True, false for 0 and 50.0 for 50.
# `Annotated[Literal[...], EXACT]` does not.
EXACT = WrapValidator(_of_its_type)
