"""A self-hosted compute service and its client; `from warpdesk import Client` loads httpx and NumPy on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpdesk.client import (
        AsyncClient,
        AsyncJob,
        AsyncResultFile,
        Busy,
        Call,
        Client,
        Dataset,
        DatasetRows,
        Job,
        JobEvent,
        JobFailed,
        JobTimeout,
        NotFound,
        ProgressBar,
        RequestRefused,
        Result,
        ResultFile,
        RoundTimeout,
        Unauthorized,
        Unreachable,
        WarpdeskError,
    )

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncResultFile",
    "Busy",
    "Call",
    "Client",
    "Dataset",
    "DatasetRows",
    "Job",
    "JobEvent",
    "JobFailed",
    "JobTimeout",
    "NotFound",
    "ProgressBar",
    "RequestRefused",
    "Result",
    "ResultFile",
    "RoundTimeout",
    "Unauthorized",
    "Unreachable",
    "WarpdeskError",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from warpdesk import client

        return getattr(client, name)
    raise AttributeError(f"module 'warpdesk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
