"""What does it cost to bring a million float64 in: npy to `PUT /v1/arrays`, or a list of numbers as JSON?

The JSON peer is the shortest FastAPI endpoint that would do: a pydantic model with a `list[float]`, made an array. It
runs under the same uvicorn settings, in the same run, in turns. It neither stores, hashes nor checks anything; ours
does. Bodies are made beforehand, so only the request is timed.
"""

from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING

import httpx
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


def main() -> None:
    values = np.random.default_rng(1).lognormal(4.0, 0.3, COUNT)
    json_body = Prices(prices=values.tolist()).model_dump_json().encode()
    npy_bodies = iter([_npy(values, i) for i in range(REPEATS + 1)])
    with (
        redis() as redis_url,
        service(redis_url) as ours,
        uvicorn("benchmarks.ingest:json_endpoint") as peer,
        httpx.Client(timeout=60) as client,
    ):
        timings = interleave(
            {
                "JSON to a list[float] of FastAPI": _json(client, peer, json_body),
                "npy to PUT /v1/arrays": lambda: _put(client, ours, next(npy_bodies)),
            },
            REPEATS,
        )
    json = next(iter(timings.values()))
    show(
        "ingest",
        [
            {
                "1,000,000 float64": name,
                "body MB": size / 1e6,
                "request": timing,
                "times quicker than JSON": json.median / timing.median,
            }
            for (name, timing), size in zip(timings.items(), (len(json_body), 8 * COUNT + 128), strict=True)
        ],
    )


def _npy(values: "np.ndarray", turn: int) -> bytes:
    """Another array each time: the service recognises content it has."""
    file = BytesIO()
    np.save(file, values + turn)
    return file.getvalue()


def _put(client: httpx.Client, url: str, body: bytes) -> None:
    response = client.put(f"{url}/v1/arrays", content=body, headers={"Content-Type": "application/x-npy"})
    assert response.status_code == 201, response.text
    assert response.json()["shape"] == [COUNT]


def _json(client: httpx.Client, url: str, body: bytes) -> Callable[[], None]:
    def post() -> None:
        response = client.post(f"{url}/prices", content=body, headers={"Content-Type": "application/json"})
        assert response.json() == [COUNT]

    return post


if __name__ == "__main__":
    main()
