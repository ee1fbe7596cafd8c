"""Timing of Flower's SecAgg+ server in one round, by Flower's own functions; prints a JSON object.

    python flower_round.py CLIENTS DROPPED DIMENSION THRESHOLD

Run by a Python that has flwr, which may be another than Warpdesk's; it imports nothing of ours. The steps are those of
`SecAggPlusWorkflow`: decode and add the survivors' vectors, combine the shares of each survivor's seed and of each
dropped client's key, agree on a key for each pair, expand each mask and add or subtract it. What is done many times is
timed a few times; "times" says how many there are in a round.
"""

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np

MODULUS = 2**32


def main(clients: int, dropped: int, dimension: int, threshold: int) -> None:
    survivors = clients - dropped
    shamir = importlib.import_module("flwr.common.secure_aggregation.crypto.shamir")
    sums = importlib.import_module("flwr.common.secure_aggregation.ndarrays_arithmetic")
    masks = importlib.import_module("flwr.common.secure_aggregation.secaggplus_utils")
    keys = importlib.import_module("flwr.common.secure_aggregation.crypto.symmetric_encryption")
    curve = _module(
        "flwr.supercore.primitives.asymmetric", "flwr.common.secure_aggregation.crypto.symmetric_encryption"
    )
    common = importlib.import_module("flwr.common")

    private, public = curve.generate_key_pairs()
    secret = curve.private_key_to_bytes(private)
    seed_shares = shamir.create_shares(os.urandom(32), threshold, clients)[:survivors]
    key_shares = shamir.create_shares(secret, threshold, clients)[:survivors]
    vector = [np.random.default_rng(0).integers(0, MODULUS, dimension)]
    sent = [common.ndarray_to_bytes(array) for array in vector]

    def add_vectors() -> object:
        total = [common.bytes_to_ndarray(content) for content in sent]
        for _ in range(survivors - 1):
            total = sums.parameters_addition(total, [common.bytes_to_ndarray(content) for content in sent])
        return sums.parameters_mod(total, MODULUS)

    def agree() -> object:
        key = curve.bytes_to_private_key(secret)
        return keys.generate_shared_key(key, curve.bytes_to_public_key(curve.public_key_to_bytes(public)))

    def remove_mask() -> object:
        mask = masks.pseudo_rand_gen(os.urandom(32), MODULUS, sums.get_parameters_shape(vector))
        return sums.parameters_subtraction(vector, mask)

    steps = {
        "add the vectors": (1, _seconds(add_vectors, 3)),
        "combine a seed": (survivors, _seconds(lambda: shamir.combine_shares(seed_shares), 2)),
        "combine a key": (dropped, _seconds(lambda: shamir.combine_shares(key_shares), 1)),
        "agree with a neighbour": (dropped * (clients - 1), _seconds(agree, 20)),
        "remove a mask": (survivors + dropped * (clients - 1), _seconds(remove_mask, 7)),
    }
    report = {name: {"times": times, "seconds": seconds} for name, (times, seconds) in steps.items()}
    print(json.dumps({"flwr": metadata.version("flwr"), "steps": report}))


def _seconds(function: Callable[[], object], repeats: int) -> float:
    """The median of the repeats."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _module(*names: str) -> Any:
    """Import the first of the modules that exists: releases of Flower moved it."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            pass
    return importlib.import_module(names[-1])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))
