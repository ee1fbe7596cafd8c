"""Five desks train one model of tomorrow's move in a stock, and none shows its prices to anybody.

    python -m examples.federated                         # FedAvg, then FedAdam: a table, and federated.png
    python -m examples.federated --secure                # over rounds of secure aggregation
    python -m examples.federated --secure --noise 0.05   # and central noise, charged to a privacy budget

Each desk is a process of its own, with four stocks and a history of its own length. In every round it gets the model,
trains it on its own days with FedProx's term (Li et al., MLSys 2020), and sends what changed: as an array, or masked,
so that the service learns the sum of five and no single update. The service averages and moves the model. It is judged
on the S&P 500, which no desk has seen.

Needs torch. With five clients, noise that protects a desk drowns what it learnt: what --noise shows is how a budget is
charged, and that a training ends where the budget does.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from examples.prices import sp500, stocks
from examples.serving import ROOT, serving
from warpdesk import Client, WarpdeskError, secagg

DESKS = 5
HISTORY, HIDDEN = 20, 16  # days that a forecast is made from, and neurons that make it
PROXIMAL = 0.1  # mu of FedProx: how hard a desk's model is held to the one it was given
CLIP = 0.5  # largest L2 norm of an update
HEAVIEST = 40  # weights are thousands of days, and no desk has more
EXPECTED_WEIGHT = 100  # of all desks together, told before the first round: with noise it is the divisor
SERVER: dict[str, dict[str, Any]] = {
    "fedavg": {"strategy": "fedavg", "learning_rate": 1.0},
    "fedadam": {"strategy": "fedadam", "learning_rate": 0.02, "beta1": 0.5, "tau": 0.02},
}

Vector = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None, home: Path | None = None) -> dict[str, list[float]]:
    """Train, print a table, save a picture; returns the loss on the index before and after each round, by strategy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--strategy", choices=[*SERVER, "both"], default="both")
    parser.add_argument("--secure", action="store_true", help="over rounds of secure aggregation")
    parser.add_argument("--noise", help="noise multiplier of central noise, a decimal string such as 0.05")
    parser.add_argument("--rho", default="5000", help="of the budget that noise is charged to")
    parser.add_argument("--url", help="of a service that runs; without it one is started")
    parser.add_argument("--picture", type=Path, default=Path("federated.png"))
    parser.add_argument("--desk", type=int, help=argparse.SUPPRESS)  # this process is one of the five
    chosen = parser.parse_args(arguments)
    if chosen.desk is not None:
        serve_desk(chosen.desk, chosen.url)
        return {}
    if chosen.url is None:
        with serving(home, "federated.log") as url:
            return _train(url, chosen)
    return _train(chosen.url, chosen)


def _train(url: str, chosen: argparse.Namespace) -> dict[str, list[float]]:
    strategies = list(SERVER) if chosen.strategy == "both" else [chosen.strategy]
    with Client(url, timeout=300) as service, desks(url) as clients:
        noise = _noise(service, chosen.noise, chosen.rho) if chosen.noise else {}
        losses = {}
        for strategy in strategies:
            server = Server(service, clients, SERVER[strategy], noise, secure=chosen.secure)
            print(f"{strategy}: {server.about()}\n")
            losses[strategy] = server.train(chosen.rounds)
            print()
    draw(
        losses,
        chosen.picture,
        f"{'secure rounds' if chosen.secure else 'plain arrays'}, noise {chosen.noise or 'none'}",
    )
    print(f"the losses are in {chosen.picture}")
    return losses


# --- a desk


def serve_desk(desk: int, url: str) -> None:
    """What a client does: for each order on its input it trains, sends its update, and says so on its output."""
    past, moves = windows(*desks_days(desk))
    weight = min(HEAVIEST, max(1, len(moves) // 1000))
    with Client(url) as service:
        for line in sys.stdin:
            order = json.loads(line)
            model = service.download(order["model"])
            update, loss = learn(model, past, moves, seed=1000 * desk + order["round"])
            report: dict[str, Any] = {"desk": desk, "weight": weight, "loss": loss}
            if order["token"] is None:
                report["update"] = service.upload(update).id
            else:
                # Masks hide what is sent, so nobody else can clip it.
                with secagg.join(url, order["token"]) as member:
                    report["client"] = member.client
                    member.take_part(clipped(update), weight)
            print(json.dumps(report), flush=True)


def learn(model: Vector, past: Vector, moves: Vector, seed: int, epochs: int = 1) -> tuple[NDArray[np.float32], float]:
    """Train the model on these days; returns what changed, and the mean loss on the way."""
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    network = _network(model)
    given = [parameter.detach().clone() for parameter in network.parameters()]
    optimiser = torch.optim.SGD(network.parameters(), lr=0.003)
    inputs = torch.tensor(past, dtype=torch.float32)
    targets = torch.tensor(moves, dtype=torch.float32)
    total = 0.0
    for _ in range(epochs):
        order = torch.randperm(len(targets))
        for start in range(0, len(order), 256):
            batch = order[start : start + 256]
            optimiser.zero_grad()
            loss = torch.nn.functional.huber_loss(network(inputs[batch])[:, 0], targets[batch])
            apart = sum(((now - before) ** 2).sum() for now, before in zip(network.parameters(), given, strict=True))
            (loss + PROXIMAL / 2 * apart).backward()  # FedProx
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            total += loss.item() * len(batch)
    changed = [(now - before).detach().numpy().ravel() for now, before in zip(network.parameters(), given, strict=True)]
    return np.concatenate(changed), total / (epochs * len(targets))


def clipped(update: NDArray[np.float32]) -> NDArray[np.float32]:
    """The update, scaled down to a norm of at most CLIP: a little below it, so that no rounding passes it."""
    norm, most = float(np.linalg.norm(update.astype(np.float64))), CLIP * (1 - 1e-6)
    return update if norm <= most else (update * (most / norm)).astype(np.float32)


# --- the server


@dataclass
class Server:
    """Moves one model, round by round: with what the desks send it, and the service's average of that."""

    service: Client
    clients: "list[subprocess.Popen[str]]"
    settings: dict[str, Any]
    noise: dict[str, Any]
    secure: bool

    def about(self) -> str:
        how = "updates are masked and summed in secure rounds" if self.secure else "updates are sent to the service"
        if not self.noise:
            return f"{how}, no noise"
        return f"{how}, noise multiplier {self.noise['dp']['noise_multiplier']}, charged to {self.noise['budget']}"

    def train(self, rounds: int) -> list[float]:
        """Print a line for each round; returns the loss on the index before each and after the last."""
        model, state = first_model(), {}
        inputs, targets = windows(sp500().close[None, :], 0)
        losses = [judged(model, inputs, targets)]
        print(f"{'round':>5} {'loss of desks':>14} {'loss on index':>14} {'summed':>7} {'rho left':>10}  computed on")
        print(f"{0:>5} {'':>14} {losses[0]:>14.5f}", flush=True)
        for number in range(1, rounds + 1):
            try:
                answer, reports, survivors = self._round(number, model, state)
            except WarpdeskError as error:
                if error.code != "budget-exceeded":
                    raise
                print(f"{number:>5} {error}")
                break
            model = answer["model"]
            if self.settings["strategy"] == "fedadam":
                state = {name: answer[name] for name in ("first_moment", "second_moment")}
            losses.append(judged(model, inputs, targets))
            mean = np.average([each["loss"] for each in reports], weights=[each["weight"] for each in reports])
            left = self.service.budget(self.noise["budget"]).remaining.rho if self.noise else ""
            print(
                f"{number:>5} {mean:>14.5f} {losses[-1]:>14.5f} {survivors:>7} {left:>10}  {answer.provenance.backend}",
                flush=True,
            )
        return losses

    def _round(self, number: int, model: Vector, state: dict[str, Vector]) -> tuple[Any, list[dict[str, Any]], int]:
        given = self.service.upload(model).id
        tokens: Sequence[str | None] = [None] * DESKS
        params: dict[str, Any] = {
            "quantisation": secagg.Quantisation(clip=str(CLIP), scale="1048576", max_weight=HEAVIEST)
        }
        made = None
        if self.secure:
            made = self.service.secagg_round(
                clients=DESKS, min_clients=3, dimension=len(model), modulus_bits=32, output="int", **params
            )
            tokens = made.tokens
        for client, token in zip(self.clients, tokens, strict=True):
            _pipe(client.stdin).write(json.dumps({"round": number, "model": given, "token": token}) + "\n")
            _pipe(client.stdin).flush()
        reports = [json.loads(_pipe(client.stdout).readline()) for client in self.clients]
        dp = dict(self.noise.get("dp", {}))
        if made is None:
            updates = np.stack([self.service.download(each["update"]) for each in reports])
            inputs: dict[str, Any] = {"updates": updates, "weights": np.array([each["weight"] for each in reports])}
            survivors = len(reports)
        else:
            summed = self.service.secagg_result(made, timeout=120)
            survivors = len(summed.survivors)
            about: dict[str, Any] = {"survivors": survivors, "quantisation": params["quantisation"].model_dump()}
            if not dp:
                about["total_weight"] = sum(each["weight"] for each in reports if each["client"] in summed.survivors)
            dp.pop("max_weight", None)
            inputs = {"sum": np.asarray(summed.sum, np.int64), "round": about}
        charged = {"dp": dp, "budget": self.noise["budget"], "idempotency_key": uuid4().hex} if self.noise else {}
        answer = self.service.run(
            "federated_average", model=model, timeout=300, **self.settings, **state, **inputs, **charged
        )
        return answer, reports, survivors


def _noise(service: Client, multiplier: str, rho: str) -> dict[str, Any]:
    budget = service.create_budget(
        "five desks", dataset=f"desks-{uuid4().hex[:8]}", accountant="zcdp", neighbouring="add_remove", rho=rho
    )
    return {
        "budget": budget.id,
        "dp": {
            "clip": str(CLIP),
            "max_weight": str(HEAVIEST),
            "expected_weight": str(EXPECTED_WEIGHT),
            "neighbouring": "add_remove",
            "noise_multiplier": multiplier,
        },
    }


@contextmanager
def desks(url: str) -> "Iterator[list[subprocess.Popen[str]]]":
    """Five processes that train."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "examples.federated", "--desk", str(desk), "--url", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for desk in range(DESKS)
    ]
    try:
        yield started
    finally:
        for process in started:
            _pipe(process.stdin).close()  # the end of its orders
            process.wait(60)
            _pipe(process.stdout).close()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # noqa: S101 (Popen was asked for it)
    return stream


# --- the model and the days


def desks_days(desk: int) -> tuple[Vector, int]:
    """Closes (4, days) of a desk's stocks, and the first day it has kept."""
    _, _, closes = stocks()
    return closes[4 * desk : 4 * desk + 4], 1200 * desk


def windows(closes: Vector, first: int) -> tuple[Vector, Vector]:
    """What a forecast is made from, the moves of SEEN days (n, SEEN), and the next day's move (n,), in percent."""
    moves = 100 * np.abs(np.diff(np.log(closes[:, first:]), axis=1))
    together = np.lib.stride_tricks.sliding_window_view(moves, HISTORY + 1, axis=1).reshape(-1, HISTORY + 1)
    return np.ascontiguousarray(together[:, :-1]), np.ascontiguousarray(together[:, -1])


def first_model() -> Vector:
    import torch

    torch.manual_seed(7)
    network = _layers()
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in network.parameters()]).astype(np.float64)


def judged(model: Vector, inputs: Vector, targets: Vector) -> float:
    """The mean Huber loss of the model's forecasts."""
    import torch

    with torch.no_grad():
        forecast = _network(model)(torch.tensor(inputs, dtype=torch.float32))[:, 0]
        return float(torch.nn.functional.huber_loss(forecast, torch.tensor(targets, dtype=torch.float32)))


def _layers() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(HISTORY, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))


def _network(model: Vector) -> Any:
    import torch

    network = _layers()
    torch.nn.utils.vector_to_parameters(torch.tensor(model, dtype=torch.float32), network.parameters())
    return network


def draw(losses: dict[str, list[float]], path: Path, how: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for strategy, line in losses.items():
        axes.plot(line, marker="o", markersize=3, label={"fedavg": "FedAvg", "fedadam": "FedAdam"}[strategy])
    axes.set_title(f"Forecast of the S&P 500's daily move, trained by five desks: {how}", loc="left", fontsize=10)
    axes.set_xlabel("round")
    axes.set_ylabel("Huber loss on the index, percent")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
