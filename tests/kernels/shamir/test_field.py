"""Arithmetic mod p, Lagrange's weights and the search for wrong words give the published and the plain answers."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.kernels.shamir.conftest import Run
from tests.kernels.shamir.plain import evaluate, interpolate
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.shamir import gpu
from warpdesk_server.kernels.shamir.combine_loops import combine
from warpdesk_server.kernels.shamir.field import DTYPE, PRIME, weights, wrong_words

REFERENCE = ROOT.parent / "shared" / "reference" / "privacy_reference_cases.json"

# Secret 1234, coefficients 166 and 94 mod 1613: the example of Wikipedia, "Shamir's secret sharing", 2024.
TEXTBOOK = {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}


def published(suite: str) -> list[dict[str, Any]]:
    if not REFERENCE.exists():
        pytest.skip(f"no reference cases at {REFERENCE}")
    found = json.loads(REFERENCE.read_text())["suites"][suite]
    cases: list[dict[str, Any]] = found["cases"] if isinstance(found, dict) else found
    return cases


def test_the_textbook_shares_are_those_of_its_polynomial_and_give_its_secret_back() -> None:
    assert {x: evaluate(1613, (1234, 166, 94), x) for x in TEXTBOOK} == TEXTBOOK
    for x in ((1, 2, 3), (2, 4, 5), (6, 1, 4)):
        [row] = weights(1613, x, [0])
        assert sum(w * TEXTBOOK[one] for w, one in zip(row, x, strict=True)) % 1613 == 1234


def test_published_weights_at_zero_and_shares_are_ours() -> None:
    count = 0
    for case in published("shamir"):
        if "lagrange_at_0" not in case:
            continue
        prime, count = int(case["p"]), count + 1
        for x, row in case["lagrange_at_0"].items():
            assert weights(prime, [int(one) for one in x.split(",")], [0]) == [[int(w) for w in row]]
        for x, shares in case["shares"].items():
            polynomials = [[int(c) for c in one] for one in case["coefficients"]]
            assert [evaluate(prime, one, int(x)) for one in polynomials] == [int(share) for share in shares]
    assert count >= 2


def test_published_shares_give_the_published_secrets_back(run: Run) -> None:
    case = next(case for case in published("shamir") if case["id"] == "m31-t3n5")
    rows = np.array([[int(word) for word in row] for row in case["shares"].values()], np.uint32)
    params = {"field": "m31", "threshold": 3, "x": [1, 2, 3, 4, 5]}
    secrets = [int(secret) for secret in case["secrets"]]
    centred = [secret - PRIME["m31"] if secret > PRIME["m31"] // 2 else secret for secret in secrets]
    answer = run("shamir_reconstruct", params, shares=rows)
    assert answer["values"].tolist() == centred
    assert -1 in centred


def _products(field: str, pairs: list[tuple[int, int]], device: Device | None) -> Iterator[int]:
    """a * b mod p by what combines shares: one row of words a, one weight b."""
    bits, prime = int(field[1:]), PRIME[field]
    for a, b in pairs:
        word, weight = np.array([[a]], DTYPE[field]), np.array([[b, 0, 0, 0]], DTYPE[field])
        out = np.empty(1, np.int64)
        if device is None:
            written = out, out.view(np.float64), np.zeros(1, np.int64)
            combine(word, np.zeros(4, np.uint32), np.zeros(0, np.uint32), weight, bits, False, 1.0, 0, 1, *written)
        else:
            values, found = device.zeros(1, np.uint64), device.zeros(3, np.uint64)
            device.kernel(gpu.SOURCES[bits == 61], "reconstruct")(
                (1,),
                (128,),
                (
                    *(device.to_device(word), np.uint64(1), np.uint64(0), np.uint32(1), np.uint32(0)),
                    *(device.to_device(weight), np.int32(0), np.float64(1), values, found),
                ),
            )
            out = device.to_host(values).view(np.int64)
        yield int(out[0]) % prime


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_published_products_and_inverses_are_ours(field: str, device: Device) -> None:
    cases = [case for case in published("field_arithmetic") if case.get("field") == field]
    pairs = [(int(case["a"]), int(case["b"])) for case in cases]
    expected = [int(case["mul"]) for case in cases]
    assert len(expected) > 2
    for where in (None, device):
        assert list(_products(field, pairs, where)) == expected
    for case in cases:
        if case["inv_a"] is not None:
            # Lagrange's weight of a + 1 beside 1 is -1 / a.
            a, prime = int(case["a"]), PRIME[field]
            if 0 < a < prime - 1:
                [[weight, _]] = weights(prime, [a + 1, 1], [0])
                assert -weight % prime == int(case["inv_a"])


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_products_of_extreme_numbers_are_those_of_integers(field: str, device: Device) -> None:
    prime = PRIME[field]
    numbers = [0, 1, 2, prime - 1, prime - 2, prime // 2, prime // 2 + 1, 2**30, 2**31 - 2, 2**30 - 1]
    numbers += [(1 << int(field[1:]) - 1) + 1, 0x5555555555555555 % prime, 0x2AAAAAAAAAAAAAAA % prime]
    pairs = [(a, b) for a in numbers for b in numbers]
    expected = [a * b % prime for a, b in pairs]
    assert list(_products(field, pairs, None)) == expected
    assert list(_products(field, pairs[::5], device)) == expected[::5]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_wrong_words_are_found_up_to_half_of_those_beyond_the_threshold(data: st.DataObject) -> None:
    prime = data.draw(st.sampled_from([1613, PRIME["m31"], PRIME["m61"]]))
    threshold = data.draw(st.integers(2, 6))
    x = data.draw(st.lists(st.integers(1, prime - 1), min_size=threshold, max_size=threshold + 7, unique=True))
    polynomial = data.draw(st.lists(st.integers(0, prime - 1), min_size=threshold, max_size=threshold))
    words = [evaluate(prime, polynomial, one) for one in x]
    most = (len(x) - threshold) // 2
    wrong = set(data.draw(st.permutations(range(len(x))))[: data.draw(st.integers(0, most))])
    for at in wrong:
        words[at] = (words[at] + data.draw(st.integers(1, prime - 1))) % prime
    assert wrong_words(prime, x, words, threshold) == wrong


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_more_wrong_words_than_can_be_named_are_never_blamed_on_few(data: st.DataObject) -> None:
    prime, threshold, extra = 2**31 - 1, 3, data.draw(st.integers(1, 5))
    x = list(range(1, threshold + extra + 1))
    polynomial = data.draw(st.lists(st.integers(0, prime - 1), min_size=threshold, max_size=threshold))
    words = [evaluate(prime, polynomial, one) for one in x]
    # Others in agreement could be taken for the truth, so those that are wrong disagree among themselves.
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for at in random.permutation(len(x))[: extra // 2 + 1]:
        words[at] = int(random.integers(prime))
    assert wrong_words(prime, x, words, threshold) is None


def test_weights_reach_from_any_points_to_any_other() -> None:
    for prime in (1613, PRIME["m31"], PRIME["m61"]):
        polynomial, x = [prime - 1, 5, 7], [3, prime - 1, 9]
        words = [evaluate(prime, polynomial, one) for one in x]
        for at, row in zip((0, 1, 11), weights(prime, x, [0, 1, 11]), strict=True):
            assert sum(w * word for w, word in zip(row, words, strict=True)) % prime == evaluate(prime, polynomial, at)
        assert interpolate(prime, list(zip(x, words, strict=True))) == prime - 1
