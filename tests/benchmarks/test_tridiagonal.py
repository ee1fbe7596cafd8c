"""The tridiagonal peers of the benchmark solve the systems of the case: LAPACK, and cuSPARSE as a stand-in for it has
them."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from scipy import linalg

from warpdesk_server.benchmarks import tridiagonal
from warpdesk_server.benchmarks.operations import select
from warpdesk_server.benchmarks.tridiagonal import SHIFT, cusparse


def case(operation):
    return next(iter(select([operation], ["small"])))


def strided_batch(handle, rows, lower, diagonal, upper, rhs, systems, stride, buffer):
    """cusparseDgtsv2StridedBatch on host memory: the first number of lower and the last of upper are left out."""
    assert (handle, stride) == (7, rows)
    assert buffer
    arrays = [
        np.ctypeslib.as_array(ctypes.cast(at, ctypes.POINTER(ctypes.c_double)), (systems, rows))
        for at in (lower, diagonal, upper, rhs)
    ]
    for a, d, c, b in zip(*arrays, strict=True):
        b[:] = linalg.solve(np.diag(d) + np.diag(a[1:], -1) + np.diag(c[:-1], 1), b)


@pytest.fixture
def device(monkeypatch):
    library = ModuleType("cusparse")
    library.dgtsv2StridedBatch = strided_batch
    library.dgtsv2StridedBatch_bufferSizeExt = lambda *_arguments: 128
    monkeypatch.setitem(sys.modules, "cupy_backends", ModuleType("cupy_backends"))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", ModuleType("libs"))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cusparse", library)

    def on_device(array):
        copy = np.array(array)
        return SimpleNamespace(data=SimpleNamespace(ptr=copy.ctypes.data), host=copy)

    cuda = SimpleNamespace(device=SimpleNamespace(get_cusparse_handle=lambda: 7))
    return SimpleNamespace(
        cupy=SimpleNamespace(cuda=cuda), to_device=on_device, empty=lambda size, dtype: on_device(np.empty(size, dtype))
    )


def test_cusparse_is_given_the_systems_of_the_case(device):
    solving = case("tridiagonal_solve")
    inputs = solving.inputs()

    (*_, rhs), _ = cusparse(device, inputs)()

    assert np.allclose(rhs.host, solving.call(inputs)()["solution"], rtol=1e-12)
    assert cusparse(device, case("tridiagonal_inverse_diagonal").inputs()) is None
    assert cusparse(SimpleNamespace(cupy=None), inputs) is None


def test_lapack_solves_the_systems_of_the_case():
    solving, inverting = case("tridiagonal_solve"), case("tridiagonal_inverse_diagonal")
    inputs = solving.inputs()

    assert np.allclose(solving.peers[0].call(inputs)(), solving.call(inputs)()["solution"], rtol=1e-12)

    given = inverting.inputs()
    ours = tridiagonal.Case("tridiagonal_solve", "", SHIFT, dict, "small")
    solution = ours.call({**given, "rhs": np.ones_like(given["diagonal"])})()["solution"]
    theirs = [answer[3] for answer in inverting.peers[0].call(given)()]
    assert np.allclose(theirs, solution[..., 0] + 1j * solution[..., 1], rtol=1e-12)
