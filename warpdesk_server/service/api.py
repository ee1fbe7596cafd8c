"""The API process. It serves on a socket that is already bound, so that its restart refuses no connection."""

import argparse
import gc
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from warpdesk_server.app.http.reception import reception
from warpdesk_server.app.main import create_app
from warpdesk_server.app.settings import Settings
from warpdesk_server.service.processes import raise_file_limit
from warpdesk_server.workers import logs


class _Server(uvicorn.Server):
    """The uvicorn server of the API. At shutdown requests waiting for a job get a 202, and event streams end."""

    def __init__(self, api: FastAPI, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                api,
                http=reception(settings),  # type: ignore[arg-type]  # uvicorn names a class of one kind of protocol
                access_log=False,
                server_header=False,
                log_config=None,  # what uvicorn says looks like all else
                log_level="warning",
                ws="none",
                timeout_graceful_shutdown=5,  # seconds for uploads and downloads under way
            )
        )
        self._api = api

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if services := getattr(self._api.state, "services", None):  # absent before it has started
            services.completions.release()
        super().handle_exit(sig, frame)


def main() -> None:
    parser = argparse.ArgumentParser(description="Used by `warpdesk serve`, which owns the socket.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of a listening TCP socket")
    listening = socket.socket(fileno=parser.parse_args().fd)
    raise_file_limit()
    settings = Settings()
    logs.configure(settings.log_format, settings.log_level)
    server = _Server(create_app(settings), settings)
    gc.collect()
    gc.freeze()  # what is here stays: to look through all of it for garbage holds every request up for 40 ms
    server.run(sockets=[listening])
    raise SystemExit(0 if server.started else 1)


if __name__ == "__main__":
    main()
