"""The route that documents each error code: the `type` of a problem document leads there."""

from fastapi import APIRouter

from warpdesk_server.app.kit import errors, schemas
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.remedies import REMEDIES

router = APIRouter(tags=["problems"])


@router.get(
    "/problems/{code}",
    summary="What an error code means",
    response_model=schemas.ProblemKind,
    responses=errors.documented("not-found"),
)
async def explain_problem(code: str) -> schemas.ProblemKind:
    if code not in errors.CODES:
        raise Refusal("not-found", f"There is no problem called {code[:64]!r}; there are {', '.join(errors.CODES)}")
    status, title, retryable = errors.CODES[code]
    meaning, remedy = REMEDIES[code]
    return schemas.ProblemKind(
        code=code, status=status, title=title, retryable=retryable, meaning=meaning, remedy=remedy
    )
