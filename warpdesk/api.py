"""Serve the API on a socket that is already bound, so that a restart of this process refuses no connection."""

import argparse
import socket

import uvicorn


def main() -> None:
    parser = argparse.ArgumentParser(description="Used by `warpdesk serve`, which owns the socket.")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of a listening TCP socket")
    listening = socket.socket(fileno=parser.parse_args().fd)
    config = uvicorn.Config(
        "app.main:create_app",
        factory=True,
        access_log=False,
        server_header=False,
        log_level="warning",
        ws="none",
        # Requests waiting for a job (`Prefer: wait`) are cut short after this: the job itself goes on.
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
    raise SystemExit(0 if server.started else 1)


if __name__ == "__main__":
    main()
