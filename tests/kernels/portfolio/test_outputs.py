"""Each output has the name, kind and a dtype that results are stored in."""

import numpy as np
import pytest

from tests.kernels.portfolio.cases import CASES, matrices
from tests.kernels.portfolio.sequential.cases import CASES as ON_THE_CPU
from warpdesk.models import DTYPES
from warpdesk_server.kernels.catalogue import CATALOGUE
from warpdesk_server.kernels.portfolio.optimize import Optimize
from warpdesk_server.kernels.portfolio.task import optimize
from warpdesk_server.kernels.task import Undisturbed

ANSWERS = {str(case): (case.operation, case.run) for case in (*CASES, *ON_THE_CPU)}
ANSWERS["optimize"] = "optimize", lambda: optimize(Optimize(), Undisturbed(), covariance=matrices(3))


@pytest.mark.parametrize("name", ANSWERS)
def test_every_output_can_be_stored(name: str) -> None:
    operation, run = ANSWERS[name]
    answer, declared = run(), CATALOGUE[operation].outputs
    assert list(answer) == [output.name for output in declared]
    for output in declared:
        value = answer[output.name]
        assert isinstance(value, np.ndarray) == (output.kind == "array")
        if isinstance(value, np.ndarray):
            assert value.dtype.name in DTYPES
            assert value.flags.c_contiguous
        else:
            assert type(value) in (int, float, str, list, type(None))
