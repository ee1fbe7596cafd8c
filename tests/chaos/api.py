"""`warpdesk_server.service.api` with the operations of the chaos tests."""

from functools import partial

from tests.chaos.operations import OPERATIONS
from warpdesk_server.app.main import create_app
from warpdesk_server.service import api

if __name__ == "__main__":
    api.create_app = partial(create_app, operations_offered=OPERATIONS)  # type: ignore[assignment]
    api.main()
