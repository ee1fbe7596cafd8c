"""Benchmark of ingest: a million float64 as npy to `PUT /v1/arrays`, or as a list of numbers in JSON.

The JSON peer is the shortest FastAPI endpoint that would do: a pydantic model with a `list[float]`, made an array. It
runs under plain uvicorn, in the same run, in turns. It neither stores, hashes nor checks anything; ours does. Timed are
the whole way, from a NumPy array in the client, and the request alone, its body made beforehand. Another endpoint under
plain uvicorn reads the same npy body and drops it.

A turn is some requests in a row over one connection (2 of JSON, 8 of npy, so that the slow ones do not leave the memory
of the others idle for seconds), for all with the client of the standard library; given is the mean of a turn. Arrays
are deleted off the clock, as the store's sweep does: in a virtual machine the first touch of memory that the host has
not given yet, or has taken back, costs several times the upload.
"""

import http.client
import json
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import BaseModel

from warpdesk_server.benchmarks.processes import redis, service, uvicorn
from warpdesk_server.benchmarks.report import interleave, show

if TYPE_CHECKING:
    from fastapi import FastAPI

COUNT = 1_000_000
JSON_IN_A_ROW, NPY_IN_A_ROW = 2, 8
REPEATS = 15

WHOLE, REQUEST, DROPPED = "from a NumPy array", "request alone", "received and dropped"


class Prices(BaseModel):
    prices: list[float]


def json_endpoint() -> "FastAPI":
    """The JSON peer's application, started by uvicorn."""
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/prices")
    def prices(body: Prices) -> list[int]:
        return list(np.array(body.prices).shape)

    return app


def dropping_endpoint() -> "FastAPI":
    """The application that reads and drops a body, under the allocator settings of the service."""
    from fastapi import FastAPI, Request

    from warpdesk_server.app.http.memory import keep_freed_memory

    keep_freed_memory()
    app = FastAPI()

    async def drop(request: Request) -> list[int]:
        return [sum([len(piece) async for piece in request.stream()])]

    app.put("/dropped")(drop)
    drop.__annotations__["request"] = Request
    return app


def main() -> None:
    prices = np.random.default_rng(1).lognormal(4.0, 0.3, COUNT)
    arrays = [prices + turn for turn in range(NPY_IN_A_ROW)]  # others each time: the service knows content it has
    few = arrays[:JSON_IN_A_ROW]
    texts, files = [_json(array) for array in few], [_npy(array) for array in arrays]
    with (
        redis() as redis_url,
        service(redis_url) as ours,
        uvicorn("warpdesk_server.benchmarks.ingest:json_endpoint") as peer,
        uvicorn("warpdesk_server.benchmarks.ingest:dropping_endpoint") as dropper,
    ):
        posting, putting, dropping = _Client(peer), _Client(ours), _Client(dropper)
        turns = interleave(
            {
                (WHOLE, "JSON"): lambda: _post(posting, (_json(array) for array in few)),
                (WHOLE, "npy"): lambda: _put(putting, (_npy(array) for array in arrays)),
                (REQUEST, "JSON"): lambda: _post(posting, texts),
                (REQUEST, "npy"): lambda: _put(putting, files),
                (DROPPED, "npy"): lambda: _drop(dropping, files),
            },
            REPEATS,
        )
    means = {
        (way, form): turn.divided(JSON_IN_A_ROW if form == "JSON" else NPY_IN_A_ROW)
        for (way, form), turn in turns.items()
    }
    sizes = {"JSON": len(texts[0]), "npy": len(files[0])}
    show(
        "ingest",
        [
            {
                "1,000,000 float64": f"{form}, {way}",
                "body MB": sizes[form] / 1e6,
                "time": mean,
                "times quicker than JSON": means[WHOLE if way == WHOLE else REQUEST, "JSON"].median / mean.median,
            }
            for (way, form), mean in means.items()
        ],
    )


def _json(array: "np.ndarray") -> bytes:
    return json.dumps({"prices": array.tolist()}, separators=(",", ":")).encode()


def _npy(array: "np.ndarray") -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


class _Client:
    """An HTTP client with a new connection for each turn: a server closes one that is idle while others have theirs."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def begin(self) -> None:
        self._connection.close()  # the next request opens it

    def send(self, method: str, path: str, body: bytes, media_type: str) -> tuple[int, Any]:
        self._connection.request(method, path, body, {"Content-Type": media_type})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def delete(self, path: str) -> None:
        self._connection.request("DELETE", path)
        response = self._connection.getresponse()
        assert (response.status, response.read()) == (204, b"")


def _post(client: _Client, bodies: Iterable[bytes]) -> None:
    client.begin()
    for body in bodies:
        assert client.send("POST", "/prices", body, "application/json") == (200, [COUNT])


def _put(client: _Client, bodies: Iterable[bytes]) -> Callable[[], None]:
    client.begin()
    answers = [client.send("PUT", "/v1/arrays", body, "application/x-npy") for body in bodies]

    def delete() -> None:
        for status, array in answers:
            assert status == 201, array
            assert array["shape"] == [COUNT]
            client.delete(f"/v1/arrays/{array['id']}")

    return delete


def _drop(client: _Client, bodies: Iterable[bytes]) -> None:
    client.begin()
    for body in bodies:
        assert client.send("PUT", "/dropped", body, "application/x-npy") == (200, [len(body)])


if __name__ == "__main__":
    main()
