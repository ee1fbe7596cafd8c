"""Bars over HTTP: an indicator takes them, none at all are an answer, and what only the data shows fails the job."""

import numpy as np
import pytest

from tests.kernels.bars.cases import START, ticks
from warpdesk import Client
from warpdesk.errors import JobFailed

pytestmark = pytest.mark.timeout(500)  # seconds; a first start compiles every operation


def test_an_indicator_takes_the_bars(client: Client) -> None:
    made = client.run("bars", by="time", every=60.0, **ticks(4000))
    assert made["time"].dtype == made["count"].dtype == np.int64
    assert made["count"].sum() == 4000
    shown = {name: made[name] for name in ("high", "low", "close")}
    assert np.isfinite(client.run("atr", period=14, **shown)["atr"][14:]).all()


def test_no_bars_at_all_are_an_answer(client: Client) -> None:
    made = client.run("bars", by="count", every=1e6, incomplete="drop", **ticks(100))
    assert {value.shape for value in made.values() if isinstance(value, np.ndarray)} == {(0,)}
    assert made["left_out"] == 0


def test_times_that_decrease_fail_the_job_with_both(client: Client) -> None:
    inputs = ticks(100)
    inputs["time"][7] = START - 1
    with pytest.raises(JobFailed, match=f"time decreases at entry 7: from [0-9]+ to {START - 1}"):
        client.run("bars", by="time", every=60.0, **inputs)
