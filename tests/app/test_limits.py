"""How often a key may submit: bursts, the rate after them, and other keys that are not in the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.auth import create_key
from app.errors import Refusal
from app.limits import Limits
from tests.app.test_auth import SCALE, bearer
from tests.app.test_uploads import NPY, npy


def test_a_burst_is_taken_and_then_the_rate() -> None:
    now = 100.0
    limits = Limits(2.0, 3, "So many", lambda: now)

    for _ in range(3):
        limits.take("a")
    with pytest.raises(Refusal, match="So many: 2 a second, 3 at once"):
        limits.take("a")
    limits.take("b")

    now += 0.5
    limits.take("a")
    with pytest.raises(Refusal):
        limits.take("a")


def test_rest_fills_no_more_than_a_burst() -> None:
    now = 0.0
    limits = Limits(1000.0, 2, "So many", lambda: now)
    limits.take("a")
    now += 3600.0

    for _ in range(2):
        limits.take("a")
    with pytest.raises(Refusal):
        limits.take("a")


@pytest.mark.parametrize(("rate", "wait"), [(0.1, "10"), (0.4, "3"), (50.0, "1")])
def test_a_refusal_says_when_one_more_is_due(rate: float, wait: str) -> None:
    limits = Limits(rate, 1, "So many", lambda: 0.0)
    limits.take("a")

    with pytest.raises(Refusal) as refused:
        limits.take("a")

    assert refused.value.status == 429
    assert refused.value.headers["Retry-After"] == wait


def test_a_key_over_its_rate_is_told_to_wait_and_others_are_served(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    busy, calm = (create_key(tmp_path / "home", name, ["submit", "read"]) for name in ("busy", "calm"))
    with serve_api(submissions_per_second=0.01, submission_burst=2) as api:
        array = npy(np.arange(3.0))
        taken = [
            api.http.post("/v1/jobs", json=SCALE, headers=bearer(busy)),
            api.http.put("/v1/arrays", content=array, headers={**NPY, **bearer(busy)}),
        ]
        before = api.queued()

        refused = [
            api.http.post("/v1/jobs", json=SCALE, headers=bearer(busy)),
            api.http.put("/v1/arrays", content=array, headers={**NPY, **bearer(busy)}),
        ]

        assert [answer.status_code for answer in taken] == [202, 201]
        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
            assert answer.json()["retryable"]
            assert 1 <= int(answer.headers["Retry-After"]) <= 100
        assert api.queued() == before
        assert api.http.get("/v1/jobs", headers=bearer(busy)).status_code == 200
        assert api.http.post("/v1/jobs", json=SCALE, headers=bearer(calm)).status_code == 202
