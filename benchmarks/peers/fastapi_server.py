"""FastAPI, computing in its own process: `fastapi_server.py PORT`."""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from relative_strength import rsi

app = FastAPI()


class Wish(BaseModel):
    prices: list[float]
    period: int


@app.post("/rsi")
async def route(wish: Wish) -> dict[str, list[float | None]]:
    return {"rsi": rsi(wish.prices, wish.period)}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
