"""Routes of administrators: the API keys that there are, and the audit log."""

import json
from collections.abc import Iterable, Iterator
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query, Request

from warpdesk_server.app.access import schemas
from warpdesk_server.app.access.audit import Admin, Audit, Audited
from warpdesk_server.app.access.auth import Gate
from warpdesk_server.app.access.keys import Key
from warpdesk_server.app.kit import errors
from warpdesk_server.app.kit.schemas import moment

router = APIRouter(tags=["administration"], route_class=Audited)

_CALLER = ("unauthorized", "missing-scope", "foreign-host", "audit-unavailable")


@router.get(
    "/v1/keys",
    summary="List the API keys",
    response_model=schemas.ApiKeyList,
    responses=errors.documented(*_CALLER),
)
async def list_keys(request: Request, _: Admin) -> schemas.ApiKeyList:
    """Their names and scopes, never their tokens. Keys are made and revoked on the service's machine."""
    gate: Gate = request.app.state.gate
    return schemas.ApiKeyList(keys=[_view(key) for key in gate.all_keys()])


def _view(key: Key) -> schemas.ApiKey:
    created_at = moment(key.created_at)
    assert created_at is not None  # noqa: S101
    return schemas.ApiKey(
        id=key.id,
        name=key.name,
        scopes=list(key.scopes),
        created_at=created_at,
        rotated_at=moment(key.rotated_at),
        earlier_tokens_until=moment(max((one.expires_at for one in key.earlier), default=None)),
    )


@router.get(
    "/v1/audit",
    summary="Read the audit log",
    response_model=schemas.AuditPage,
    responses=errors.documented(*_CALLER, "invalid-request"),
)
async def read_audit(
    request: Request,
    _: Admin,
    after: Annotated[int | None, Query(ge=0, le=1 << 53, description="From `next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> schemas.AuditPage:
    """Without `after` the last lines, this request's own among them; `next` leads to those that come later."""
    audit: Audit = request.app.state.audit
    lines, position = await anyio.to_thread.run_sync(audit.lines, after, limit)
    return schemas.AuditPage(entries=list(_parsed(lines)), next=f"/v1/audit?after={position}&limit={limit}")


def _parsed(lines: Iterable[bytes]) -> Iterator[schemas.AuditRecord]:
    """The lines of the audit log that are whole: a full disk may have cut one off."""
    for line in lines:
        try:
            yield schemas.AuditRecord.model_validate(json.loads(line), strict=False)
        except ValueError:
            continue
