"""The check of query parameters: an unknown or repeated one is refused instead of silently ignored."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fastapi import Request

from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.kernels.problems import Problem


async def declared_alone(request: Request) -> None:
    """A FastAPI dependency of every route: refuse query parameters that the OpenAPI document does not declare."""
    if not request.scope["query_string"]:
        return
    path, method = request.scope["route"].path, request.method
    route: dict[str, Any] = request.app.openapi()["paths"].get(path, {}).get(method.lower(), {})
    declared = {parameter["name"]: parameter for parameter in route.get("parameters", ()) if parameter["in"] == "query"}
    takes = f"it takes {' and '.join(declared)}" if declared else "it takes none"
    problems = []
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        pointer = f"/query/{errors.escape(name[:80])}"
        if name not in declared:
            problems.append(Problem(pointer, f"{method} {path} has no query parameter {name[:80]!r}; {takes}"))
        elif count > 1 and not _is_list(declared[name]["schema"]):  # FastAPI would use the last one
            problems.append(Problem(pointer, f"{name} is given {count} times; it takes one value"))
    if problems:
        raise Refusal("invalid-request", errors.sentence_of(tuple(problems)), *problems)


def _is_list(schema: Mapping[str, Any]) -> bool:
    return any(form.get("type") == "array" for form in (schema, *schema.get("anyOf", ())))
