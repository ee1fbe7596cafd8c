"""The training example runs as it is shown: five processes, rounds over REST, plain and secure, with a budget's end."""

import importlib.util
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from examples import federated

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def home() -> Iterator[Path]:
    """Short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="warpdesk-test-") as folder:
        yield Path(folder)


@needs_torch
@pytest.mark.timeout(500)  # seconds; a first start compiles every operation
def test_five_desks_learn_over_secure_rounds_until_their_budget_is_spent(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A round at noise multiplier 0.05 costs rho 200: three fit.
    chosen = ["--secure", "--noise", "0.05", "--rho", "700", "--strategy", "fedavg", "--rounds", "5"]
    losses = federated.main([*chosen, "--picture", str(home / "loss.png")], home / "state")
    printed = capsys.readouterr().out
    assert len(losses["fedavg"]) == 1 + 3
    assert losses["fedavg"][-1] < losses["fedavg"][0]
    assert "100" in printed.splitlines()[-3]
    assert (home / "loss.png").read_bytes().startswith(b"\x89PNG")


@needs_torch
def test_what_a_desk_learns_lowers_the_loss_on_days_it_has_not_seen() -> None:
    past, moves = federated.windows(*federated.desks_days(4))
    inputs, targets = federated.windows(federated.sp500().close[None, :], 0)
    model = federated.first_model()
    update, _ = federated.learn(model, past, moves, seed=1)
    again, _ = federated.learn(model, past, moves, seed=1)
    assert update.tobytes() == again.tobytes()
    assert federated.judged(model + update, inputs, targets) < 0.9 * federated.judged(model, inputs, targets)


def test_days_are_followed_by_the_move_that_is_to_be_forecast() -> None:
    closes = np.exp(np.arange(30.0)[None, :] ** 2 / 1000)
    past, moves = federated.windows(closes, 2)
    expected = [100 * (2 * day + 1) / 1000 for day in range(2, 29)]
    np.testing.assert_allclose(past[0], expected[:20])
    np.testing.assert_allclose(moves, expected[20:])


def test_an_update_is_scaled_down_to_the_clip_and_no_further() -> None:
    small, large = np.full(4, 0.1, np.float32), np.full(4, 3.0, np.float32)
    assert federated.clipped(small) is small
    for scaled in (large, *np.random.default_rng(1).normal(0, 3, (200, 50)).astype(np.float32)):
        exact = sum(Fraction(float(number)) ** 2 for number in federated.clipped(scaled))
        assert (Fraction(federated.CLIP) * Fraction(99_999, 100_000)) ** 2 < exact <= Fraction(federated.CLIP) ** 2
