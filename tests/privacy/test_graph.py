"""A ring of neighbours protects as well as everybody with everybody, at the probability that was asked for."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from warpdesk.secagg.graph import COMPLETE, Graph, majority, neighbours, parameters
from warpdesk_server.kernels.secure_aggregation.spec import SecureAggregation
from warpdesk_server.privacy.rounds.terms import MOST_CLIENTS

_THIRD, _TWENTIETH, _NONE = Fraction(33, 100), Fraction(1, 20), Fraction(0)


# Google's federated-compute, fcp/secagg/server/graph_parameter_finder_test.cc at e7157f0, where its rules for a curious
# server are ours: it asks for no majority, and takes a client for one of its own neighbours.
@pytest.mark.parametrize(
    ("n", "corrupt", "drop", "degree", "threshold"),
    [
        (10_000, _THIRD, _THIRD, 422, 221),
        (1000, _THIRD, _TWENTIETH, 78, 60),
        (10_000, _THIRD, _TWENTIETH, 92, 70),
        (100_000, _THIRD, _TWENTIETH, 102, 77),
        (1_000_000, _THIRD, _TWENTIETH, 110, 83),
        (100, _THIRD, _NONE, 26, 25),
        (1000, _THIRD, _NONE, 38, 36),
        (10_000, _THIRD, _NONE, 42, 40),
        (1_000_000, _THIRD, _NONE, 50, 47),
        (10_000, _TWENTIETH, _TWENTIETH, 34, 20),
        (100_000, _TWENTIETH, _TWENTIETH, 36, 21),
        (1_000_000, _TWENTIETH, _TWENTIETH, 38, 22),
    ],
)
def test_degrees_and_thresholds_are_those_of_the_published_finder(
    n: int, corrupt: Fraction, drop: Fraction, degree: int, threshold: int
) -> None:
    assert parameters(n, corrupt=corrupt, drop=drop) == Graph(degree, threshold)


# The same file, where a share of one's own, or a neighbour that one is not, makes a difference.
@pytest.mark.parametrize(
    ("n", "corrupt", "drop", "degree"),
    [
        (100, _THIRD, _THIRD, 68),
        (1000, _THIRD, _THIRD, 286),
        (100, _THIRD, _TWENTIETH, 34),
        (1000, _TWENTIETH, _TWENTIETH, 30),
    ],
)
def test_elsewhere_degrees_are_one_step_from_the_published_ones(
    n: int, corrupt: Fraction, drop: Fraction, degree: int
) -> None:
    assert parameters(n, corrupt=corrupt, drop=drop).degree == degree - 2


@settings(deadline=None, max_examples=40)
@given(st.integers(COMPLETE + 1, 2000), st.integers(0, 30), st.integers(0, 30))
def test_the_tails_are_those_of_scipy_and_no_smaller_threshold_would_do(n: int, corrupt: int, drop: int) -> None:
    graph = parameters(n, corrupt=Fraction(corrupt, 100), drop=Fraction(drop, 100))
    bad, gone = n * corrupt // 100, n * drop // 100
    assert graph.threshold >= majority(graph.degree + 1)
    if graph.degree < n - 1:
        corrupt_neighbours = hypergeom(n - 1, bad, graph.degree)
        assert n * corrupt_neighbours.sf(graph.threshold - 1) <= 2.0**-41 * (1 + 1e-9)
        left = hypergeom(n - 1, n - gone, graph.degree) if gone else hypergeom(n - 1, n - 1, graph.degree)
        assert n * left.cdf(graph.threshold - 1) <= 2.0**-20 * (1 + 1e-9)
        if graph.threshold > majority(graph.degree + 1):
            assert n * corrupt_neighbours.sf(graph.threshold - 2) > 2.0**-41 * (1 - 1e-9)


def test_more_security_never_takes_fewer_neighbours() -> None:
    degrees = [parameters(500, security_bits=bits).degree for bits in (20, 30, 40, 60, 80)]
    assert degrees == sorted(degrees)
    assert len(set(degrees)) > 3


@pytest.mark.parametrize("n", [3, 4, 10, 49, 50])
def test_a_small_round_masks_everybody_with_everybody(n: int) -> None:
    assert parameters(n) == Graph(n - 1, n // 2 + 1)


def test_a_round_in_which_most_may_collude_takes_everybody_and_a_threshold_above_them() -> None:
    assert parameters(200, corrupt=Fraction(7, 10), drop=Fraction(3, 10)) == Graph(199, 141)


@pytest.mark.parametrize(("n", "corrupt"), [(2, _NONE), (100, Fraction(1)), (100, Fraction(-1, 10))])
def test_what_makes_no_round_is_refused(n: int, corrupt: Fraction) -> None:
    with pytest.raises(ValueError, match=r"3 are the least|from 0 to below 1"):
        parameters(n, corrupt=corrupt)


@pytest.mark.parametrize(("n", "degree"), [(3, 2), (5, 4), (8, 4), (8, 7), (101, 66)])
def test_neighbours_are_mutual_and_as_many_as_the_degree(n: int, degree: int) -> None:
    ring = [7 * at % 1009 for at in range(n)]
    found = neighbours(ring, degree)
    assert {len(set(others)) for others in found.values()} == {degree}
    assert all(client not in others for client, others in found.items())
    assert all(client in found[other] for client, others in found.items() for other in others)


def test_neighbours_are_the_nearest_on_the_ring() -> None:
    assert neighbours([10, 30, 20, 50, 40, 60], 2)[10] == (60, 30)


@pytest.mark.parametrize(("ring", "degree"), [([1, 2, 3, 4, 5], 3), ([1, 2, 3], 4), ([1, 2, 3], 0), ([1, 2, 2], 2)])
def test_a_ring_that_is_none_is_refused(ring: list[int], degree: int) -> None:
    with pytest.raises(ValueError, match=r"degree|names each client once"):
        neighbours(ring, degree)


def test_the_honest_stay_connected_when_as_many_as_assumed_are_gone() -> None:
    n = 200
    graph = parameters(n)
    # The worst that can happen with fewer than `degree` in two gaps: the ring holds together.
    gone = set(range(graph.degree // 2)) | set(range(100, 100 + graph.degree // 2 - 1))
    found = neighbours(range(n), graph.degree)
    reached, frontier = {150}, [150]
    while frontier:
        for other in found[frontier.pop()]:
            if other not in gone and other not in reached:
                reached.add(other)
                frontier.append(other)
    assert len(reached) == n - len(gone)


def test_the_largest_round_bears_the_drop_outs_that_are_promised() -> None:
    """The pairs of dropped and surviving neighbours fit one job."""
    metadata = SecureAggregation.model_fields["pairs"].metadata
    most = next(part.max_length for part in metadata if hasattr(part, "max_length"))
    largest = parameters(MOST_CLIENTS)
    assert MOST_CLIENTS // 5 * largest.degree <= most
