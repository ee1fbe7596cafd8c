"""The rows of a matrix come from many at once, and become the array without being written again."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from warpdesk_server.workers.store import rows as module
from warpdesk_server.workers.store.rows import Closed, Rows, RowTaken, arranged
from warpdesk_server.workers.store.spool import SpoolStore

COLUMNS = 1000
ROW = 4 * COLUMNS


@pytest.fixture
def matrix(tmp_path: Path) -> Rows:
    rows = SpoolStore(tmp_path, "everysec").rows("round_1", 6, ROW)
    rows.begin()
    return rows


def numbers(row: int) -> "np.ndarray[Any, Any]":
    return np.arange(COLUMNS, dtype="<u4") + 10_000 * (row + 1)


def send(matrix: Rows, row: int, *, pieces: int = 3) -> None:
    content = numbers(row).tobytes()
    opened = matrix.open(row)
    for start in range(0, ROW, ROW // pieces + 1):
        opened.write([content[start : start + ROW // pieces + 1]])
    opened.finish()
    opened.close()


def array(matrix: Rows) -> "np.ndarray[Any, Any]":
    loaded: np.ndarray[Any, Any] = np.load(matrix.file, allow_pickle=False)
    return loaded


@given(st.sets(st.integers(0, 40), min_size=1))
def test_rows_that_lie_among_the_first_stay_and_the_last_fill_the_gaps(keep: set[int]) -> None:
    order = arranged(sorted(keep))
    assert sorted(order) == sorted(keep)
    assert sum(place != row for place, row in enumerate(order)) == len([row for row in keep if row >= len(keep)])


@pytest.mark.parametrize("keep", [[0, 1, 2, 3, 4, 5], [1, 2, 5], [3], [0, 2, 4]])
def test_what_is_kept_becomes_an_array(matrix: Rows, keep: list[int]) -> None:
    matrix.begin()  # a second one who begins changes nothing
    for row in keep:
        send(matrix, row)
    assert matrix.file.stat().st_size == 128 + 6 * ROW

    order = matrix.close(keep, "uint32", (len(keep), COLUMNS))

    np.testing.assert_array_equal(array(matrix), [numbers(row) for row in order])
    assert matrix.close(keep, "uint32", (len(keep), COLUMNS)) == order
    np.testing.assert_array_equal(array(matrix), [numbers(row) for row in order])


class _Crash(Exception):
    pass


@pytest.mark.parametrize("step", range(10))  # a header, two rows of two pieces each read and written, a cut
def test_a_crash_at_any_step_of_closing_leaves_what_the_next_finishes(
    matrix: Rows, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    keep = [1, 3, 4, 5]
    for row in keep:
        send(matrix, row)
    left = [step]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def crash(*given: Any) -> Any:
            if left[0] == 0:
                raise _Crash
            left[0] -= 1
            return call(*given)

        return crash

    monkeypatch.setattr(module, "_PIECE", ROW // 2)
    for name in ("pwrite", "pread", "ftruncate"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    with pytest.raises(_Crash):
        matrix.close(keep, "uint32", (4, COLUMNS))
    monkeypatch.undo()

    order = matrix.close(keep, "uint32", (4, COLUMNS))

    np.testing.assert_array_equal(array(matrix), [numbers(row) for row in order])


def test_an_upload_that_still_runs_when_the_matrix_is_closed_writes_nothing_any_more(matrix: Rows) -> None:
    for row in (0, 2, 5):
        send(matrix, row)
    late = matrix.open(1)
    late.write([b"\xff" * 100])
    matrix.close([0, 2, 5], "uint32", (3, COLUMNS))

    with pytest.raises(Closed):
        late.write([b"\xff" * 100])
    late.erase()
    late.close()

    np.testing.assert_array_equal(array(matrix), [numbers(0), numbers(5), numbers(2)])


def test_closing_waits_for_a_piece_that_is_being_written(matrix: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    send(matrix, 0)
    send(matrix, 5)
    late, written, go_on = matrix.open(1), threading.Event(), threading.Event()
    write = module._write

    def slow(*given: Any) -> None:
        written.set()
        assert go_on.wait(30)
        write(*given)

    monkeypatch.setattr(module, "_write", slow)
    writing = threading.Thread(target=late.write, args=([b"\xff" * 100],))
    writing.start()
    assert written.wait(30)
    monkeypatch.setattr(module, "_write", write)
    closing = threading.Thread(target=matrix.close, args=([0, 5], "uint32", (2, COLUMNS)))
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    for thread in (writing, closing):
        thread.join(30)
    late.close()
    np.testing.assert_array_equal(array(matrix), [numbers(0), numbers(5)])


def test_a_row_is_one_writers_at_a_time_and_free_when_that_one_is_gone(matrix: Rows) -> None:
    first, other = matrix.open(2), matrix.open(3)
    with pytest.raises(RowTaken):
        matrix.open(2)
    program = (
        "import sys; from pathlib import Path; from warpdesk_server.workers.store.rows import Rows; "
        f"Rows(Path(sys.argv[1]), 6, {ROW}, forced=False).open(2)"
    )
    another = subprocess.run([sys.executable, "-c", program, matrix.file], cwd=ROOT, capture_output=True, text=True)
    assert "warpdesk_server.workers.store.rows.RowTaken" in another.stderr
    first.close()
    other.close()
    matrix.open(2).close()


@settings(deadline=None)
@given(sent=st.integers(0, ROW - 1))
def test_what_is_erased_is_zero_again_and_its_neighbours_are_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, sent: int
) -> None:
    rows = SpoolStore(tmp_path_factory.mktemp("store"), "everysec").rows("r", 3, ROW)
    rows.begin()
    send(rows, 0)
    send(rows, 2)
    opened = rows.open(1)
    opened.write([b"\xff" * sent])
    with pytest.raises(ValueError, match=f"{sent} bytes are fewer than the row's {ROW}"):
        opened.finish()
    opened.erase()
    opened.close()
    whole = rows.file.read_bytes()
    assert whole[128 + ROW : 128 + 2 * ROW] == bytes(ROW)
    assert whole[128 : 128 + ROW] == numbers(0).tobytes()
    assert whole[128 + 2 * ROW :] == numbers(2).tobytes()


def test_a_row_takes_no_byte_more_than_it_has(matrix: Rows) -> None:
    opened = matrix.open(0)
    opened.write([bytes(ROW - 1)])
    with pytest.raises(ValueError, match=f"{ROW + 1} bytes are more than the row's {ROW}"):
        opened.write([b"\xff", b"\xff"])
    opened.close()
    assert matrix.file.read_bytes() == bytes(128 + 6 * ROW)


def test_a_matrix_that_is_deleted_is_gone_and_may_be_deleted_again(matrix: Rows) -> None:
    matrix.delete()
    matrix.delete()
    assert not matrix.file.exists()
    assert list(matrix.file.parent.iterdir()) == []


def test_a_name_that_is_a_path_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the name of a matrix"):
        SpoolStore(tmp_path).rows("../owners/x", 1, 4)
