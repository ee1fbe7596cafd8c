"""A self-hosted compute service and its client; `from warpdesk import Client` loads httpx and NumPy on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpdesk.client import AsyncClient, Client, Job, JobEvent, ProgressBar, Result, WarpdeskError

__all__ = ["AsyncClient", "Client", "Job", "JobEvent", "ProgressBar", "Result", "WarpdeskError"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from warpdesk import client

        return getattr(client, name)
    raise AttributeError(f"module 'warpdesk' has no attribute {name!r}")
