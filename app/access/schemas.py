"""Schemas of API keys and of the audit log."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from warpdesk.models import Reply
from warpdesk_server.app.access.keys import Scope


class ApiKey(Reply):
    """An API key, without its tokens, of which the service has digests alone."""

    id: Annotated[str, Field(description="The owner of its jobs, arrays and charges")]
    name: str
    scopes: list[Scope]
    created_at: datetime
    rotated_at: Annotated[datetime | None, Field(description="When it got its present token")]
    earlier_tokens_until: Annotated[
        datetime | None, Field(description="Until when a token from before the rotation is accepted; null: none is")
    ]


class ApiKeyList(Reply):
    keys: list[ApiKey]


class AuditRecord(Reply):
    """A line of the audit log: an act that an administrator begins, what came of it, or a look at others' data."""

    at: datetime
    entry: Annotated[str, Field(description="The same of both lines of an act")]
    who: Annotated[dict[str, Any], Field(description="The API key, or the user of the operating system")]
    action: str
    target: str | None
    outcome: Annotated[str, Field(description="begun, read, succeeded, or why not")]
    request_id: str | None


class AuditPage(Reply):
    entries: Annotated[list[AuditRecord], Field(description="The oldest first")]
    next: Annotated[str, Field(description="URL of what comes after these, also if there is nothing yet")]
