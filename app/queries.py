"""Refuse a query parameter that the route does not declare: a misspelt one would be ignored without a word."""

from typing import Any

from fastapi import Request

from app import errors
from app.errors import Refusal
from kernels.operation import Problem


async def declared_alone(request: Request) -> None:
    """A dependency of every route; what a route declares is what the OpenAPI document names."""
    if not request.scope["query_string"]:
        return
    path, method = request.scope["route"].path, request.method
    route: dict[str, Any] = request.app.openapi()["paths"].get(path, {}).get(method.lower(), {})
    known = [parameter["name"] for parameter in route.get("parameters", ()) if parameter["in"] == "query"]
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        takes = f"it takes {' and '.join(known)}" if known else "it takes none"
        problems = tuple(
            Problem(
                f"/query/{errors.escape(name[:80])}", f"{method} {path} has no query parameter {name[:80]!r}; {takes}"
            )
            for name in unknown
        )
        raise Refusal("invalid-request", errors.sentence_of(problems), *problems)
