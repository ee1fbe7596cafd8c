"""The notebook of a trading desk, run against a whole service: it prints what is committed, and its verdict holds.

`DESK_SAVE=1` writes the outputs of the run into the notebook.
None of its jobs is long (`WARPDESK_LONG_SECONDS`): a long one waits while other processes want the processor.
"""

import os
from collections.abc import Iterator
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from numpy.typing import NDArray
from scipy.stats import kurtosis, norm, skew

from tests.conftest import ROOT, Service, wait_until_ready

pytestmark = pytest.mark.timeout(500)  # seconds; a first start compiles every operation

NOTEBOOK = ROOT / "examples" / "desk.ipynb"
YEAR = 252


@pytest.fixture(scope="module")
def notebook(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The notebook after a run in a process of its own, as Jupyter runs it; `metadata.numbers` is a file of arrays."""
    wait_until_ready(service)  # a test before may have killed a part of it
    folder = tmp_path_factory.mktemp("desk")
    run = nbformat.read(NOTEBOOK, as_version=4)
    arrays = "price=relative[stock], sharpe=sharpe, curve=best, walked=walked, edges=edges, **lengths"
    luck = "luck=[luck.deflated_sharpe, luck.walk_forward_sharpe]"
    run.cells.append(nbformat.v4.new_code_cell(f"np.savez({str(folder / 'numbers.npz')!r}, {arrays}, {luck})"))
    left_out = ("MPLBACKEND", "WARPDESK_")  # of the developer's shell
    variables = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    variables |= {"WARPDESK_URL": service.url, "JUPYTER_RUNTIME_DIR": str(folder), "IPYTHONDIR": str(folder)}
    path = {"metadata": {"path": NOTEBOOK.parent}}
    client = NotebookClient(run, timeout=None, record_timing=False, coalesce_streams=True, resources=path)
    client.execute(env=variables)
    run.cells.pop()
    if os.environ.get("DESK_SAVE") == "1":
        run.metadata.language_info = {"name": "python"}
        nbformat.write(run, NOTEBOOK)
    with np.load(folder / "numbers.npz") as numbers:
        run.metadata.numbers = dict(numbers)
    return run


def printed(notebook: Any) -> list[str]:
    """What each cell of code prints."""
    outputs = (cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(each.text for each in of_cell if each.get("name") == "stdout") for of_cell in outputs]


def test_the_notebook_prints_what_is_committed(notebook: Any) -> None:
    assert printed(notebook) == printed(nbformat.read(NOTEBOOK, as_version=4))


def test_every_figure_is_drawn_and_the_file_stays_small(notebook: Any) -> None:
    for each in (notebook, nbformat.read(NOTEBOOK, as_version=4)):
        drawn = ["plt.show()" in cell.source for cell in each.cells if cell.cell_type == "code"]
        outputs = [cell.outputs for cell in each.cells if cell.cell_type == "code"]
        assert drawn == [any("image/png" in output.get("data", {}) for output in of_cell) for of_cell in outputs]
    assert NOTEBOOK.stat().st_size < 500_000


def test_the_best_curve_is_what_numpy_trades(notebook: Any) -> None:
    numbers = notebook.metadata.numbers
    price = numbers["price"]
    wanted = mean(price, int(numbers["fast"])) > mean(price, int(numbers["slow"]))
    # A signal at one close fills at the next; the last close of each block sells.
    held = np.concatenate([[False], wanted[:-1]])
    held[numbers["edges"][1:-1] - 1] = False
    before = np.concatenate([[False], held[:-1]])
    growth = np.concatenate([[1.0], np.where(before[1:], price[1:] / price[:-1], 1.0)])
    growth = growth / np.where(held & ~before, 1.001 * 1.0005, 1.0) * np.where(before & ~held, 0.999 * 0.9995, 1.0)
    np.testing.assert_allclose(numbers["curve"], np.cumprod(growth), rtol=1e-9)


def test_the_verdict_follows_from_curves_and_trials(notebook: Any) -> None:
    numbers = notebook.metadata.numbers
    returns = growth_of(numbers["curve"])
    ratio, trials = returns.mean() / returns.std(ddof=1), numbers["sharpe"].size
    assert np.isclose(ratio * YEAR**0.5, numbers["sharpe"].max(), rtol=1e-9)
    # Bailey and Lopez de Prado (2014), equation 1, and (2012), equation 9.
    quantiles = norm.ppf(1 - 1 / trials), norm.ppf(1 - 1 / (trials * np.e))
    luck = numbers["sharpe"].std(ddof=1) / YEAR**0.5 * np.dot([1 - np.euler_gamma, np.euler_gamma], quantiles)
    spread = 1 - skew(returns) * ratio + (kurtosis(returns, fisher=False) - 1) / 4 * ratio**2
    deflated = norm.cdf((ratio - luck) * ((returns.size - 1) / spread) ** 0.5)
    walked = growth_of(numbers["walked"])[numbers["edges"][1] :]
    walk_forward = walked.mean() / walked.std(ddof=1) * YEAR**0.5
    np.testing.assert_allclose(numbers["luck"], [deflated, walk_forward], rtol=1e-9, atol=1e-12)

    (verdict,) = (text for text in printed(notebook) if "Verdict" in text)
    assert deflated < 0.95
    assert f"{deflated:.1%}" in verdict
    assert f"Verdict: nothing is left after deflation of {trials:,} trials. We do not trade it." in verdict


def mean(price: NDArray[np.float64], period: int) -> NDArray[np.float64]:
    """The simple moving average, NaN before it has all its prices."""
    windows = np.lib.stride_tricks.sliding_window_view(price, period)
    return np.concatenate([np.full(period - 1, np.nan), windows.mean(axis=1)])


def growth_of(equity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each bar's return, of the first from the capital on, which is 1."""
    return np.diff(equity, prepend=1.0) / np.concatenate([[1.0], equity[:-1]])
