"""Rounds computed once by plain Python and OpenSSL, kept beside the repository where it is developed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.secure_aggregation import cpu
from tests.kernels.secure_aggregation.rounds import Round, validate
from warpdesk.masking import ClientSecret, pair_seed

_CASES = Path(__file__).resolve().parents[4] / "shared" / "reference" / "privacy_reference_cases.json"


@pytest.fixture(scope="module")
def case() -> dict[str, Any]:
    if not _CASES.exists():
        pytest.skip(f"no reference cases at {_CASES}")
    suite = json.loads(_CASES.read_text())["suites"]["secagg"]
    found: dict[str, Any] = next(case for case in suite if case["id"] == "wd-secagg-u32")
    return found


@pytest.fixture(scope="module")
def played(case: dict[str, Any]) -> Round:
    clients = {int(name): value for name, value in case["clients"].items()}
    return Round(
        {
            c: np.array([int(x) for x in v["vector"]], np.uint32).view(np.int32).astype(np.int64)
            for c, v in clients.items()
        },
        32,
        100,
        bytes.fromhex(case["round_id"]),  # type: ignore[arg-type]
        {
            c: ClientSecret(bytes.fromhex(v["x25519_private"]), bytes.fromhex(v["self_seed"]))
            for c, v in clients.items()
        },
    )


def test_pair_seeds_and_masked_vectors_are_the_recorded_ones(case: dict[str, Any], played: Round) -> None:
    for names, seed in case["pair_seeds"].items():
        i, j = (int(name) for name in names.split(","))
        assert pair_seed(i, played.secrets[i], j, played.roster[j], played.round_id).hex() == seed
        assert pair_seed(j, played.secrets[j], i, played.roster[i], played.round_id).hex() == seed
    for name, client in case["clients"].items():
        assert played.masked(int(name)).tolist() == [int(word) for word in client["masked"]]


def test_sums_with_and_without_a_dropout_are_the_recorded_ones(case: dict[str, Any], played: Round) -> None:
    for dropped, expected in (((), case["expect_sum"]), ((3,), case["dropout"]["expect_sum"])):
        request, inputs = played.request(dropped)
        request["round_id"] = case["round_id"]
        answer = cpu.secure_aggregation(validate(request, inputs), **inputs)
        assert answer["sum"].tolist() == [int(x) for x in expected]
