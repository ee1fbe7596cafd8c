"""What is measured: every operation, with requests that make sense and goals beside peers that are there."""

import numpy as np
import pytest

from warpdesk_server.benchmarks import shamir
from warpdesk_server.benchmarks.cases import Case
from warpdesk_server.benchmarks.operations import CASES, select
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.catalogue import OPERATIONS

ACROSS = ("cross_zscore", "winsorise", "neutralise")
SMALL = [pytest.param(case, id=f"{case.operation} {case.label}") for case in CASES if case.sizes == "small"]


@pytest.mark.parametrize("sizes", ["small", "full"])
def test_every_operation_is_measured(sizes):
    assert {case.operation for case in CASES if case.sizes == sizes} == set(OPERATIONS)


@pytest.mark.parametrize("case", SMALL)
def test_a_request_is_one_that_the_service_would_take(case: Case):
    infos = {name: ArrayInfo(array.dtype.name, array.shape) for name, array in case.inputs().items() if array.size}

    OPERATIONS[case.operation].validate(case.params, infos)


def test_no_two_cases_have_one_name():
    names = [(case.operation, case.label, case.sizes) for case in CASES]

    assert len(names) == len(set(names))


def test_a_goal_is_beside_a_peer_of_the_case():
    for case in CASES:
        assert set(case.goal.peers) <= {peer.name for peer in case.peers}, case


def test_the_figures_to_reach_on_a_gpu_are_measured_at_their_sizes():
    aims = {(case.operation, case.label): case.goal for case in CASES if case.sizes != "small"}

    assert {
        name: aims[name, f"{bars} bars, 100M"].part for name, bars in (("sma", 20), ("bollinger", 20), ("rsi", 14))
    } == {
        "sma": 0.8,
        "bollinger": 0.75,
        "rsi": 0.65,
    }
    assert aims["rsi", "14 bars, 1M"].seconds == 15e-6
    assert aims["monte_carlo", "Asian call, 1M x 252"].seconds == 0.8e-3
    assert aims["dp_noise", "Laplace of 1M"].seconds == 150e-6
    assert {
        n: aims["matmul", f"kernel, {n}x{n} by {n}x{n}, float32"].part for n in (2048, 4096, 8192)
    } == dict.fromkeys((2048, 4096, 8192), 0.85)


def test_an_operation_that_is_not_measured_is_refused_by_name():
    with pytest.raises(ValueError, match="no benchmark of fft; there are sma, ema"):
        select(["sma", "fft"], ["small"])


def test_the_numpy_peers_compute_what_we_compute():
    for case in select(["add", "multiply", "axpy", "dot", "sum", "norm", "min", "max", "matmul", *ACROSS], ["small"]):
        inputs = case.inputs()
        ours = next(iter(case.call(inputs)().values()))
        for peer in case.peers:
            if peer.distribution == "numpy":
                assert np.allclose(ours, peer.call(inputs)(), rtol=1e-5, atol=1e-5), case


def test_the_numpy_peers_of_secret_sharing_make_shares_and_give_their_values_back():
    values = np.arange(-70_000, 70_000)  # more than a block of theirs
    for field in ("m31", "m61"):
        shares = shamir.numpy_share(field, 6, 10, values)
        x = (10, 2, 3, 7, 5, 9, 1, 4)
        given = np.ascontiguousarray(shares[[one - 1 for one in x]])
        ours = OPERATIONS["shamir_reconstruct"]
        params = ours.params.model_validate({"field": field, "threshold": 6, "x": x}, strict=False)
        assert np.array_equal(ours.implementation("cpu")(params, given)["values"], values)
        assert np.array_equal(shamir.numpy_reconstruct(field, x, 6, given, True), values)
        given[7, 99] ^= 1
        with pytest.raises(ValueError, match="the shares disagree"):
            shamir.numpy_reconstruct(field, x, 6, given, True)
