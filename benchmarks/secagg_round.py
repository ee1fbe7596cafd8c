"""Benchmark of a secure aggregation server: one round of 100 clients with a million words each; ten drop out.

    python -m benchmarks secagg_round [--flower=PYTHON] [--service] [--save]

Ours is measured whole: shares of 90 seeds and 10 keys are combined, 900 pairs agree on their seeds, and the job unmasks
the sum. `--service` plays the round over HTTP besides, clients in threads of this process, and tells how long the sum
takes after the last message, and the processor seconds of API, worker and Redis for everything, 360 MB of vectors
received included. `--flower` names a Python that has flwr (`python3 -m venv flower && flower/bin/pip install flwr`; its
pins may not go with ours): Flower's SecAgg+ computes the same round by its own functions. Those that it calls hundreds
of times are timed a few times and multiplied, since the whole takes minutes.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

import numpy as np

from warpdesk import Client, secagg
from warpdesk.secagg import key_agreement, secret_sharing
from warpdesk.secagg.masking import Quantisation, quantise
from warpdesk_server.benchmarks.processes import redis, service
from warpdesk_server.benchmarks.report import Row, Timing, show
from warpdesk_server.kernels.catalogue import OPERATIONS
from warpdesk_server.privacy.rounds import unmasking

CLIENTS, DROPPED, DIMENSION, THRESHOLD = 100, 10, 1_000_000, 67
BITS: Literal[32] = 32
REPEATS = 5
MASKED_SECONDS = 150.0  # for 90 clients in one process to expand 9,000 masks; the round waits as long for the dropped
QUANTISATION = Quantisation(clip="8", scale="65536", max_weight=1)
ROUND = "round_" + "0" * 32


def main() -> int:
    parser = argparse.ArgumentParser(description="One round of secure aggregation, beside Flower's SecAgg+")
    parser.add_argument("--flower", type=Path, metavar="PYTHON", help="a Python that has flwr")
    parser.add_argument("--service", action="store_true", help="play the round against a service too")
    chosen, _ = parser.parse_known_args()  # names of benchmarks, and --save
    ours = _ours()
    total = Timing.of([sum(run.values()) for run in ours])
    rows: list[Row] = [
        *(
            {"by": "Warpdesk", "step": step, "times": "", "time": Timing.of([run[step] for run in ours])}
            for step in ours[0]
        ),
        {"by": "Warpdesk", "step": "the round", "times": "", "time": total},
    ]
    if chosen.service:
        rows += _over_http()
    if chosen.flower:
        flower, seconds = _flower(chosen.flower)
        rows += [
            *flower,
            {"by": "Flower / Warpdesk", "step": "the round", "times": "", "time": f"{seconds / total.median:.0f} x"},
        ]
    show("secagg_round", rows)
    return 0


def _ours() -> list[dict[str, float]]:
    """Warpdesk's seconds of each step of the round, of several runs."""
    publics, shares = _clients()
    survivors, dropped = list(range(CLIENTS - DROPPED)), list(range(CLIENTS - DROPPED, CLIENTS))
    pairs = [(gone, stayed) for gone in dropped for stayed in survivors]
    given = unmasking.Shares(
        ROUND,
        THRESHOLD,
        publics,
        {client: {x: share for x, share in shares[client][0].items() if x <= len(survivors)} for client in survivors},
        {client: {x: share for x, share in shares[client][1].items() if x <= len(survivors)} for client in dropped},
    )
    masked = np.random.default_rng(0).integers(0, 2**BITS, (len(survivors), DIMENSION), np.uint32)
    operation = OPERATIONS["secure_aggregation"]
    request = {
        "round_id": ROUND,
        "modulus_bits": BITS,
        "threshold": THRESHOLD,
        "survivors": survivors,
        "dropped": dropped,
        "pairs": pairs,
        "quantisation": {"clip": str(2**BITS), "scale": "1"},
        "output": "int",
    }
    compute = operation.implementation("cpu")
    # Random words are no vectors: the first row is made so that the sum is 0, which honest clients could have.
    params = operation.params.model_validate(request, strict=False)
    inputs = {"self_seeds": unmasking.self_seeds(given, survivors), "pair_seeds": unmasking.pair_seeds(given, pairs)}
    arrays = {name: np.frombuffer(seeds, np.uint8).reshape(-1, 32) for name, seeds in inputs.items()}
    masked[0] -= compute(params, masked=masked, **arrays)["sum"].astype(np.uint32)
    exact = operation.params.model_validate({**request, "quantisation": QUANTISATION.model_dump()}, strict=False)

    runs = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        seeds = unmasking.self_seeds(given, survivors)
        combined = time.perf_counter()
        between = unmasking.pair_seeds(given, pairs)
        agreed = time.perf_counter()
        arrays = {
            "self_seeds": np.frombuffer(seeds, np.uint8).reshape(-1, 32),
            "pair_seeds": np.frombuffer(between, np.uint8).reshape(-1, 32),
        }
        answer = compute(exact, masked=masked, **arrays)
        done = time.perf_counter()
        assert not answer["sum"].any()
        runs.append(
            {
                f"combine the shares of {len(survivors)} seeds": combined - began,
                f"combine {len(dropped)} keys, agree on {len(pairs)} pair seeds": agreed - combined,
                f"add {len(survivors)} vectors, remove {len(survivors) + len(pairs)} masks": done - agreed,
            }
        )
    return runs


def _over_http() -> list[Row]:
    """Run the round over HTTP against a service of its own, and check the sum."""
    rows = np.random.default_rng(1).normal(size=(4, DIMENSION))  # four vectors, each of every fourth client
    with redis() as redis_url, service(redis_url) as url, Client(url) as client, ExitStack() as members:
        made = client.secagg_round(
            clients=CLIENTS, dimension=DIMENSION, quantisation=QUANTISATION, threshold=THRESHOLD,
            modulus_bits=BITS, output="int",
            deadlines={"keys_s": 120.0, "shares_s": 120.0, "masked_s": MASKED_SECONDS, "unmask_s": 120.0},
        )  # fmt: skip
        before = _processor_seconds()
        joined = [members.enter_context(secagg.join(url, token)) for token in made.tokens]
        with ThreadPoolExecutor(8) as pool:
            stayed = joined[: CLIENTS - DROPPED]
            list(pool.map(secagg.Member.publish_keys, joined))
            list(pool.map(secagg.Member.send_shares, joined))
            list(pool.map(lambda member: member.send_vector(rows[member.client % 4]), stayed))
            list(pool.map(secagg.Member.unmask, stayed))
        last = time.perf_counter()
        result = client.secagg_result(made, timeout=120)
        finished = time.perf_counter()
        used = _processor_seconds() - before
    quantised = [quantise(row, QUANTISATION) for row in rows]
    assert result.survivors == list(range(CLIENTS - DROPPED))
    assert np.array_equal(result.sum, sum(quantised[at % 4] for at in result.survivors))
    return [
        {
            "by": "Warpdesk",
            "step": "over HTTP: the sum after the last message",
            "times": "",
            "time": Timing.of([finished - last]),
        },
        {"by": "Warpdesk", "step": "over HTTP: processor seconds of all of it", "times": "", "time": Timing.of([used])},
    ]


def _processor_seconds() -> float:
    """The processor seconds of all descendants of this process."""
    parents, seconds = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            parents[int(process.name)] = int(fields[1])
            seconds[int(process.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    below, found = [os.getpid()], 0.0
    while below:
        children = [child for child, parent in parents.items() if parent in below]
        found += sum(seconds[child] for child in children)
        below = children
    return found


def _clients() -> tuple[dict[int, bytes], dict[int, tuple[dict[int, bytes], dict[int, bytes]]]]:
    """The clients' public mask keys, and the shares of their self seeds and mask keys."""
    publics, shares = {}, {}
    for client in range(CLIENTS):
        private, places = secrets.token_bytes(32), range(1, CLIENTS + 1)
        publics[client] = key_agreement.public_key(private)
        seed = secrets.token_bytes(32)
        shares[client] = (
            secret_sharing.split(seed, THRESHOLD, places),
            secret_sharing.split(private, THRESHOLD, places),
        )
    return publics, shares


def _flower(python: Path) -> tuple[list[Row], float]:
    """The rows of Flower's steps of the round, and the seconds of the whole round."""
    script = Path(__file__).with_name("flower_round.py")
    sizes = [str(size) for size in (CLIENTS, DROPPED, DIMENSION, THRESHOLD)]
    report = json.loads(subprocess.run([python, script, *sizes], check=True, capture_output=True, text=True).stdout)
    name, steps = f"Flower {report['flwr']}", report["steps"]
    seconds = sum(step["times"] * step["seconds"] for step in steps.values())
    rows = [
        {"by": name, "step": step, "times": one["times"], "time": Timing.of([one["seconds"]])}
        for step, one in steps.items()
    ]
    return [
        *rows,
        {"by": name, "step": "the round, times multiplied", "times": "", "time": Timing.of([seconds])},
    ], seconds


if __name__ == "__main__":
    sys.exit(main())
