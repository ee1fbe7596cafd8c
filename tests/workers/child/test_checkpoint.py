"""The files of checkpoints: what is read is what was written, or nothing."""

import io
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as of_numpy

from warpdesk_server.workers.child.checkpoint import Checkpoint, CheckpointHead, read, write

HEAD = CheckpointHead(step=7, seconds=1.25, code="c0de", work="3456")

names = st.text("abcdefgh_", min_size=1, max_size=8)
arrays = of_numpy.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_]),
    of_numpy.array_shapes(min_dims=0, min_side=0),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def content(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    write(file, Checkpoint(HEAD, state))
    return file.getvalue()


def same(one: Any, other: Any) -> bool:
    if not isinstance(one, np.ndarray):
        return bool(one == other)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@given(st.dictionaries(names, arrays | values, max_size=4))
def test_what_is_read_is_what_was_written(state: dict[str, Any]) -> None:
    found = read(io.BytesIO(content(state)))
    assert found.head == HEAD
    assert found.state.keys() == state.keys()
    assert all(same(value, found.state[name]) for name, value in state.items())


@given(st.data())
def test_a_damaged_file_is_refused_or_has_no_other_state(data: st.DataObject) -> None:
    state = {"weights": np.arange(6.0).reshape(2, 3), "done": 7}
    whole = bytearray(content(state))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = read(io.BytesIO(bytes(whole)))
    except ValueError:
        return
    assert found.head == HEAD
    assert all(same(value, found.state[name]) for name, value in state.items())


@given(st.integers(0, 400))
def test_a_file_that_is_cut_short_is_refused(length: int) -> None:
    whole = content({"weights": np.arange(30.0)})
    with pytest.raises(ValueError, match="damaged"):
        read(io.BytesIO(whole[: min(length, len(whole) - 1)]))


def test_what_cannot_be_kept_is_named() -> None:
    with pytest.raises(TypeError, match="models is an array of Python objects"):
        content({"models": np.array([object()])})
    with pytest.raises(TypeError, match="not JSON serializable"):
        content({"generator": np.random.default_rng(1)})
