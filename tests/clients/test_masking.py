"""A masked vector hides its values, and masks cancel exactly as the protocol says."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from warpdesk.secagg.graph import neighbours
from warpdesk.secagg.masking import ClientSecret, Quantisation, add_masks, mask, new_secret, pair_seed, quantise

_UNIT = Quantisation(clip="8", scale="65536", max_weight=1)


def test_both_clients_of_a_pair_find_the_same_seed_and_another_in_every_round() -> None:
    one, two = new_secret(), new_secret()
    seed = pair_seed(1, one.private, 2, two.public, "a")
    assert seed == pair_seed(2, two.private, 1, one.public, "a")
    assert (
        len({seed, pair_seed(1, one.private, 2, two.public, "b"), pair_seed(1, one.private, 3, two.public, b"\x00")})
        == 3
    )


def test_a_public_key_is_the_one_of_rfc_7748() -> None:
    alice = ClientSecret(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"), bytes(32))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"


def test_secrets_do_not_show_when_printed() -> None:
    secret = new_secret()
    assert repr(secret) == "ClientSecret()"
    assert secret != new_secret()


@pytest.mark.parametrize("bits", [32, 64])
def test_masks_of_all_clients_leave_the_sum_of_self_masks(bits: int) -> None:
    clients = {c: new_secret() for c in (5, 1, 40)}
    roster = {c: secret.public for c, secret in clients.items()}
    dtype = np.dtype(f"u{bits // 8}")
    zeros = np.zeros(100, np.int64)
    total = sum(add_masks(zeros, c, clients[c], roster, "r", bits) for c in clients)
    # A client alone in a roster has no pairs: what is left is its self mask.
    alone = sum(add_masks(zeros, c, clients[c], {c: roster[c]}, "r", bits) for c in clients)
    assert total.dtype == dtype
    assert np.array_equal(total, alone)


def test_a_masked_vector_is_uniform_whatever_it_hides() -> None:
    clients = {c: new_secret() for c in (1, 2)}
    roster = {c: secret.public for c, secret in clients.items()}
    for values in (np.zeros(200_000), np.full(200_000, 7.5)):
        masked = mask(values, 1, clients[1], roster, round_id="r", quantisation=_UNIT)
        for shift in (0, 8, 16, 24):
            counts = np.bincount((masked >> np.uint32(shift)) & np.uint32(255), minlength=256)
            expected = len(values) / 256
            # Chi-square with 255 degrees of freedom, p = 1e-6 (377.1): one false alarm in 10**5 runs of eight.
            assert ((counts - expected) ** 2 / expected).sum() < 440


@pytest.mark.parametrize(
    ("value", "clip", "scale", "expected"),
    [
        (0.5, "8", "1", 0),
        (1.5, "8", "1", 2),
        (-2.5, "8", "1", -2),
        (9.0, "8", "65536", 524288),
        (-9.0, "8", "65536", -524288),
    ],
)
def test_quantising_rounds_ties_to_even_and_clips(value: float, clip: str, scale: str, expected: int) -> None:
    assert quantise([value], Quantisation(clip=clip, scale=scale, max_weight=1)).tolist() == [expected]


def test_a_quantised_value_never_passes_the_bound_the_proof_counts_on() -> None:
    for clip, scale in (("0.1", "3"), ("0.3", "1e17"), ("1e-3", "12345678901"), ("9.2233720368547758", "1e18")):
        quantisation = Quantisation(clip=clip, scale=scale, max_weight=1)
        steps = quantise([1e300, -1e300, float(clip)], quantisation)
        assert max(abs(int(step)) for step in steps) <= quantisation.bound


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.floats(-1e4, 1e4) | st.sampled_from([0.5, -2.5, 1e-3, 0.0005, 8191.9999]), min_size=1, max_size=5),
    st.sampled_from(["1", "3", "1000", "65536", "1e12", "1e15", "123456789.0123", "0.1", "900719925474099.3"]),
    st.sampled_from(["8191", "1", "0.3", "9000"]),
)
def test_quantising_is_exact_for_every_float_and_every_scale(values: list[float], scale: str, clip: str) -> None:
    quantisation = Quantisation(clip=clip, scale=scale)
    limit = Fraction(clip)
    expected = [round(min(max(Fraction(value), -limit), limit) * Fraction(scale)) for value in values]
    assert quantise(values, quantisation).tolist() == expected


def test_steps_above_what_a_float_holds_are_kept_apart() -> None:
    # 2**53 + 1 is no float64: a product of floats cannot say it.
    assert quantise([(2**53 + 1) / 3 / 2**20], Quantisation(clip="1e11", scale="3145728")).tolist() == [
        round(Fraction((2**53 + 1) / 3 / 2**20) * 3145728)
    ]
    assert quantise([1.0, 3.0], Quantisation(clip="2", scale="4503599627370497.5")).tolist() == [
        4503599627370498,
        9007199254740995,
    ]


def test_masks_among_neighbours_alone_cancel_too() -> None:
    clients = {c: new_secret() for c in range(5)}
    roster = {c: secret.public for c, secret in clients.items()}
    ring = neighbours(range(5), 2)
    values = np.arange(8.0)
    total = sum(
        mask(values, c, clients[c], roster, round_id="r", quantisation=_UNIT, neighbours=ring[c]) for c in clients
    )
    alone = sum(mask(values, c, clients[c], roster, round_id="r", quantisation=_UNIT, neighbours=()) for c in clients)
    assert np.array_equal(total, alone)
    # Not those of everybody with everybody.
    assert not np.array_equal(
        mask(values, 0, clients[0], roster, round_id="r", quantisation=_UNIT, neighbours=ring[0]),
        mask(values, 0, clients[0], roster, round_id="r", quantisation=_UNIT),
    )


def test_a_weight_multiplies_the_integers() -> None:
    quantisation = Quantisation(clip="8", scale="4", max_weight=10)
    assert quantise([1.0, -0.5], quantisation, weight=10).tolist() == [40, -20]
    with pytest.raises(ValueError, match="weight 11 is outside 1 to 10"):
        quantise([1.0], quantisation, weight=11)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="1 of 2 values are NaN or infinite"):
        quantise([1.0, value], _UNIT)


def _mask(**changes: Any) -> Any:
    me, other = new_secret(), new_secret()
    arguments: dict[str, Any] = {
        "values": [1.0],
        "me": 1,
        "secret": me,
        "roster": {1: me.public, 2: other.public},
        "round_id": "r",
        "quantisation": _UNIT,
    }
    arguments.update({name: change(arguments) if callable(change) else change for name, change in changes.items()})
    return mask(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modulus_bits": 16}, "modulus_bits is 32 or 64, got 16"),
        ({"me": 3}, "the roster does not hold this client's public key under id 3"),
        ({"me": 2}, "the roster does not hold this client's public key under id 2"),
        ({"roster": lambda a: {1: a["secret"].public}}, "names two or more clients"),
        ({"roster": lambda a: {1: a["secret"].public, 2: a["secret"].public}}, "names two or more clients"),
        (
            {"quantisation": Quantisation(clip="1e9", scale="2", max_weight=1)},
            "could reach 4000000000, above 2147483647",
        ),
        ({"values": [[1.0]]}, r"values of shape \[1, 1\] are not a vector"),
        (
            {"roster": lambda a: {1: a["secret"].public, 2: bytes(32)}},
            "Error computing shared key",
        ),  # a point of low order
    ],
)
def test_a_client_refuses_a_round_that_would_not_protect_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _mask(**changes)


def test_a_client_shares_no_seed_with_itself() -> None:
    secret = new_secret()
    with pytest.raises(ValueError, match="client 4 shares no pair seed with itself"):
        pair_seed(4, secret.private, 4, secret.public, "r")


def test_keys_come_from_the_operating_system_afresh() -> None:
    secrets = [new_secret() for _ in range(50)]
    assert len({s.private for s in secrets} | {s.self_seed for s in secrets}) == 100
    assert all(X25519PrivateKey.from_private_bytes(s.private) for s in secrets)
