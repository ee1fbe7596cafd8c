"""BentoML with one worker: `bentoml_server.py PORT`."""

import os
import sys
from pathlib import Path

import bentoml
from relative_strength import rsi


@bentoml.service(workers=1)
class Rsi:
    @bentoml.api(route="/rsi")
    def compute(self, prices: list[float], period: int) -> dict[str, list[float | None]]:
        return {"rsi": rsi(prices, period)}


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    program = str(Path(sys.executable).with_name("bentoml"))
    os.execv(program, [program, "serve", "bentoml_server:Rsi", "--port", sys.argv[1]])  # noqa: S606
