"""Times of datasets: text and nanoseconds are one, and what has no zone is refused."""

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdesk_server.app.datasets.times import FIRST, LAST, parse, text


@given(st.integers(FIRST, LAST))
def test_a_time_comes_back_from_its_text(time: int) -> None:
    assert parse(text(time)) == parse(time) == time
    assert np.datetime64(text(time)[:-1], "ns").astype(np.int64) == time


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("2026-11-27T21:00:00Z", "2026-11-27T21:00:00Z"),
        ("2026-11-27 22:30:00.5+01:30", "2026-11-27T21:00:00.500Z"),
        ("2026-11-27t16:00-0500", "2026-11-27T21:00:00Z"),
        ("2026-11-27T21:00:00.000000001z", "2026-11-27T21:00:00.000000001Z"),
        ("1969-12-31T23:59:59.9Z", "1969-12-31T23:59:59.900Z"),
        ("2024-02-29T00:00:00+14:00", "2024-02-28T10:00:00Z"),
    ],
)
def test_forms_of_iso_8601(given: str, same: str) -> None:
    assert text(parse(given)) == same
    assert abs(parse(given) - datetime.fromisoformat(same).replace(tzinfo=UTC).timestamp() * 1e9) < 1e6


@pytest.mark.parametrize(
    "given",
    [
        "2026-11-27", "2026-11-27T21:00:00", "2026-02-30T00:00:00Z", "2026-11-27T24:00:00Z",
        "2026-11-27T21:00:00+25:00", "1500-01-01T00:00:00Z", "2026-11-27T21:00:00.1234567890Z",
        "", "now", None, True, 1.0, 2**63, -(2**63),
        "٢٠٢٦-11-27T21:00:00Z",
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"time|64 bits"):
        parse(given)
