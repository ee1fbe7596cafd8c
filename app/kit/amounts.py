"""Parser of privacy amounts in JSON requests: a JSON number is kept as its decimal text, so 0.1 is exactly a tenth."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import jiter

from warpdesk.amount import FORMAT
from warpdesk_server.kernels.operation import Computation


class Amounts:
    """The positions of privacy amounts in the parameters of each operation, for the routes that read them from JSON."""

    def __init__(self, operations: Mapping[str, Computation]) -> None:
        schemas = {name: operation.params.model_json_schema() for name, operation in operations.items()}
        self._schemas = {name: schema for name, schema in schemas.items() if f"'{FORMAT}'" in str(schema)}

    def of_job(self, parsed: object, body: bytes) -> object:
        """A job submission whose privacy amounts are text, not floats. `parsed` is the parsed `body`, and is changed
        in place."""
        if not isinstance(parsed, dict) or not isinstance(parsed.get("operation"), str):
            return parsed
        schema, params = self._schemas.get(parsed["operation"]), parsed.get("params")
        if schema is not None and isinstance(params, dict) and _has_fraction(params):
            exact = jiter.from_json(body, allow_inf_nan=False, float_mode="decimal")
            parsed["params"] = _written(exact["params"], schema, schema.get("$defs", {}))
        return parsed


def of_body(body: bytes, schema: dict[str, Any]) -> object:
    """Parse a route's request body of this schema, with its privacy amounts as text. Raises ValueError as the parser
    does."""
    exact = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, float_mode="decimal")
    return _written(exact, schema, schema.get("$defs", {}))


def _has_fraction(value: Any) -> bool:
    """Whether the parsed JSON of a request has a number with a fraction, so perhaps a privacy amount."""
    if isinstance(value, dict):
        return any(map(_has_fraction, value.values()))
    if isinstance(value, list):
        return any(map(_has_fraction, value))
    return type(value) is float


def _written(value: Any, schema: Any, defs: Mapping[str, Any]) -> Any:
    """Convert a request's parsed JSON: a decimal becomes text where the schema has a privacy amount, and a float
    elsewhere."""
    places = _places(schema, defs)
    if isinstance(value, dict):
        groups = [place["properties"] for place in places if "properties" in place]
        return {
            key: _written(item, {"anyOf": [of[key] for of in groups if key in of]}, defs) for key, item in value.items()
        }
    if isinstance(value, list):
        items = {"anyOf": [place["items"] for place in places if isinstance(place.get("items"), dict)]}
        return [_written(item, items, defs) for item in value]
    if isinstance(value, Decimal):
        return str(value) if any(place.get("format") == FORMAT for place in places) else float(value)
    return value


def _places(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas in which a request may have a privacy amount: a JSON schema, with all that it refers to or chooses
    from."""
    if "$ref" in schema:
        return _places(defs[schema["$ref"].rpartition("/")[2]], defs)
    within = [
        place for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ()) for place in _places(part, defs)
    ]
    return [schema, *within]
