"""Opens the audit log for a command, with an error message for an unusable file."""

import os
from typing import TYPE_CHECKING

from warpdesk.cli.command import Misconfigured

if TYPE_CHECKING:
    from warpdesk_server.app.access.audit import Audit
    from warpdesk_server.app.settings import Settings


def audit_log(settings: "Settings") -> "Audit":
    """Open the audit log for a command, as a user whose files the service can read. Raises Misconfigured."""
    from warpdesk_server.app.access.audit import Audit

    if os.geteuid() == 0 and settings.home.exists() and (owner := settings.home.stat().st_uid) != 0:
        raise Misconfigured(
            f"{settings.home} belongs to the user {owner}, who could not read what root writes there: run this as that "
            f"user (setpriv --reuid {owner} --regid {owner} --clear-groups warpdesk ...)"
        )
    settings.audit_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Audit(settings.audit_path)


def not_written(error: OSError) -> str:
    return f"{error.filename or 'a file'} cannot be used: {error.strerror}"
