"""The choice of a worker's store: the spool directory on this machine, or the store behind the API."""

from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.protocol import WorkerStore
from warpdesk_server.workers.store.spool import SpoolStore


def open_store(settings: WorkerSettings) -> WorkerStore:
    """Open the store that the settings choose. The worker's parent and child processes each open one."""
    if settings.api_url:
        from warpdesk_server.workers.store.remote.store import RemoteStore  # with it comes an HTTP client

        return RemoteStore(settings)
    return SpoolStore(settings.store_directory, settings.durability, kept_free=settings.kept_free_bytes)
