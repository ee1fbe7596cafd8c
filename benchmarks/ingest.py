"""What does it cost to bring a million float64 in: npy to `PUT /v1/arrays`, or a list of numbers as JSON?

The JSON peer is the shortest FastAPI endpoint that would do: a pydantic model with a `list[float]`, made an array. It
runs under the same uvicorn settings, in the same run, in turns. It neither stores, hashes nor checks anything; ours
does. Bodies are made beforehand, so only the request is timed. The client is the standard library's for all: one
connection each, kept open. Each array is deleted off the clock, as the store's sweep does, so that the kernel has pages
at hand: in a virtual machine the first touch of memory it never used costs several times the upload. The floor is an
endpoint that reads the same npy body and drops it.
"""

import http.client
import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import BaseModel

from benchmarks.processes import redis, service, uvicorn
from benchmarks.report import interleave, show

if TYPE_CHECKING:
    from fastapi import FastAPI

COUNT = 1_000_000
REPEATS = 15


class Prices(BaseModel):
    prices: list[float]


def json_endpoint() -> "FastAPI":
    """The peer, started by uvicorn."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/prices")
    def prices(body: Prices) -> list[int]:
        return list(np.array(body.prices).shape)

    return app


def dropping_endpoint() -> "FastAPI":
    """What it costs to receive the bytes, under the allocator settings of the service."""
    from fastapi import FastAPI, Request

    from app.memory import keep_freed_memory

    keep_freed_memory()
    app = FastAPI()

    async def drop(request: Request) -> list[int]:
        return [sum([len(piece) async for piece in request.stream()])]

    app.put("/dropped")(drop)
    drop.__annotations__["request"] = Request
    return app


def main() -> None:
    values = np.random.default_rng(1).lognormal(4.0, 0.3, COUNT)
    json_body = Prices(prices=values.tolist()).model_dump_json().encode()
    npy_bodies = [_npy(values, i) for i in range(REPEATS + 1)]
    with (
        redis() as redis_url,
        service(redis_url) as ours,
        uvicorn("benchmarks.ingest:json_endpoint") as peer,
        uvicorn("benchmarks.ingest:dropping_endpoint") as floor,
    ):
        timings = interleave(
            {
                "JSON to a list[float] of FastAPI": _json(_Client(peer), json_body),
                "npy to PUT /v1/arrays": _put(_Client(ours), iter(npy_bodies)),
                "npy received and dropped": _drop(_Client(floor), iter(npy_bodies)),
            },
            REPEATS,
        )
    json_timing = next(iter(timings.values()))
    sizes = (len(json_body), len(npy_bodies[0]), len(npy_bodies[0]))
    show(
        "ingest",
        [
            {
                "1,000,000 float64": name,
                "body MB": size / 1e6,
                "request": timing,
                "times quicker than JSON": json_timing.median / timing.median,
            }
            for (name, timing), size in zip(timings.items(), sizes, strict=True)
        ],
    )


def _npy(values: "np.ndarray", turn: int) -> bytes:
    """Another array each time: the service recognises content it has."""
    file = BytesIO()
    np.save(file, values + turn)
    return file.getvalue()


class _Client:
    """One kept connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def send(self, method: str, path: str, body: bytes, media_type: str) -> tuple[int, Any]:
        self._connection.request(method, path, body, {"Content-Type": media_type})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def delete(self, path: str) -> None:
        self._connection.request("DELETE", path)
        response = self._connection.getresponse()
        assert (response.status, response.read()) == (204, b"")


def _json(client: _Client, body: bytes) -> Callable[[], None]:
    def post() -> None:
        assert client.send("POST", "/prices", body, "application/json") == (200, [COUNT])

    return post


def _put(client: _Client, bodies: Iterator[bytes]) -> Callable[[], Callable[[], None]]:
    def put() -> Callable[[], None]:
        status, array = client.send("PUT", "/v1/arrays", next(bodies), "application/x-npy")
        assert status == 201, array
        assert array["shape"] == [COUNT]
        return lambda: client.delete(f"/v1/arrays/{array['id']}")

    return put


def _drop(client: _Client, bodies: Iterator[bytes]) -> Callable[[], None]:
    def drop() -> None:
        body = next(bodies)
        assert client.send("PUT", "/dropped", body, "application/x-npy") == (200, [len(body)])

    return drop


if __name__ == "__main__":
    main()
