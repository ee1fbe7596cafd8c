"""Which store a worker has: the spool where it can reach it, else the API's."""

from warpdesk_server.workers.settings import WorkerSettings
from warpdesk_server.workers.store.protocol import WorkerStore
from warpdesk_server.workers.store.spool import SpoolStore


def open_store(settings: WorkerSettings) -> WorkerStore:
    """Parent and child each open it."""
    if settings.api_url:
        from warpdesk_server.workers.store.remote.store import RemoteStore  # with it comes an HTTP client

        return RemoteStore(settings)
    return SpoolStore(settings.store_directory, settings.durability, kept_free=settings.kept_free_bytes)
