"""LitServe with one worker: `litserve_server.py PORT`."""

import sys
from typing import Any

import litserve
from relative_strength import rsi


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        """Prepare nothing: TA-Lib is imported."""

    def predict(self, wish: dict[str, Any]) -> dict[str, list[float | None]]:
        return {"rsi": rsi(wish["prices"], wish["period"])}


if __name__ == "__main__":
    server = litserve.LitServer(Api(api_path="/rsi"), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
