"""Ray Serve with one replica: `ray_server.py PORT`."""

import signal
import sys
from typing import Any

from ray import serve
from relative_strength import rsi
from starlette.requests import Request


@serve.deployment
class Rsi:
    async def __call__(self, request: Request) -> dict[str, Any]:
        wish = await request.json()
        return {"rsi": rsi(wish["prices"], wish["period"])}


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Rsi.bind(), route_prefix="/rsi")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
