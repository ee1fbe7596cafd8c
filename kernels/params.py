"""The base of every operation's parameters: strict types, also for literals."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError, SchemaValidator, core_schema


class Params(BaseModel):
    """Base of every operation's parameters: strict types, no unknown field, no NaN, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class OneOrSeveral:
    """The annotation of a parameter that takes one value, or a list of up to `most`, which becomes a tuple.

    `Annotated[int, Field(ge=1), OneOrSeveral(64)]` takes 14 and [5, 10, 20].
    """

    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        one = handler(source)
        several = SchemaValidator(
            core_schema.list_schema(one, min_length=1, max_length=self.most), core_schema.CoreConfig(strict=True)
        )

        def validated(value: Any, of_one: core_schema.ValidatorFunctionWrapHandler) -> Any:
            if isinstance(value, list | tuple):
                return tuple(several.validate_python([*value]))  # its errors have the place in the list
            return of_one(value)

        plain = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(validated, one, serialization=plain)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        one = handler(schema)
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": self.most}]}


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
