"""Shares are those of polynomials with uniform coefficients, whoever computes them; what does not fit is refused."""

import math
from fractions import Fraction
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.cudasim.device import EmulatedDevice
from tests.kernels.shamir.conftest import Run
from tests.kernels.shamir.plain import evaluate, interpolate
from tests.kernels.watched import WatchedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu.faults import DeviceFault
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.shamir import cpu, gpu, spec
from warpdesk_server.kernels.shamir.field import DTYPE, PRIME
from warpdesk_server.kernels.shamir.spec import SHARE, ShamirShare

KEY = bytes(range(40, 72))
Array = npt.NDArray[Any]


def openssl_block(key: bytes, counter: int, k: int, attempt: int) -> bytes:
    """A block of keystream by OpenSSL."""
    nonce = counter.to_bytes(4, "little") + k.to_bytes(4, "little") + attempt.to_bytes(4, "little") + b"shar"
    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(64))


def coefficient(field: str, key: bytes, i: int, k: int) -> int:
    """Coefficient k of element i, as the documentation says where it is."""
    prime, size = PRIME[field], 4 if field == "m31" else 8
    of_block = 64 // size
    block, word, attempt = 16 * (i // (16 * of_block)) + i % 16, i // 16 % of_block, 0
    while True:
        drawn = openssl_block(key, block, k, attempt)[word * size : (word + 1) * size]
        if (number := int.from_bytes(drawn, "little") & prime) < prime:
            return number
        attempt += 1


def expected(field: str, key: bytes, threshold: int, shares: int, secrets: list[int]) -> list[list[int]]:
    prime = PRIME[field]
    polynomials = [
        [secret % prime, *(coefficient(field, key, i, k) for k in range(1, threshold))]
        for i, secret in enumerate(secrets)
    ]
    return [[evaluate(prime, polynomial, x) for polynomial in polynomials] for x in range(1, shares + 1)]


@pytest.mark.parametrize("field", ["m31", "m61"])
@pytest.mark.parametrize(("threshold", "shares", "size"), [(2, 2, 1), (3, 5, 140), (6, 10, 270), (27, 30, 17)])
def test_shares_are_those_of_polynomials_out_of_openssls_keystream(
    run: Run, field: str, threshold: int, shares: int, size: int
) -> None:
    most = PRIME[field] // 2
    secrets = [most, -most, 0, -1, 1, *range(-3, size)][:size]
    params = {"field": field, "threshold": threshold, "shares": shares}
    answer = run("shamir_share", params, values=np.array(secrets, np.int64), key=KEY)
    assert answer["shares"].dtype == DTYPE[field]
    assert answer["shares"].tolist() == expected(field, KEY, threshold, shares, secrets)
    assert answer["x"] == list(range(1, shares + 1))


def test_a_coefficient_that_would_be_the_prime_is_drawn_again(run: Run) -> None:
    # Found by search among 2^30 words: the first draw of coefficient 1 of this element is 2^31 - 1.
    key, at = (57_538).to_bytes(32, "little"), 14_609
    assert int.from_bytes(openssl_block(key, at // 16, 1, 0)[4:8], "little") & PRIME["m31"] == PRIME["m31"]
    params = {"field": "m31", "threshold": 2, "shares": 2}
    shares = run("shamir_share", params, values=np.zeros(at + 1, np.uint8), key=key)["shares"]
    drawn = int.from_bytes(openssl_block(key, at // 16, 1, 1)[4:8], "little") & PRIME["m31"]
    assert shares[:, at].tolist() == [drawn, 2 * drawn % PRIME["m31"]]
    assert drawn != 0


@given(st.data(), st.sampled_from(["m31", "m61"]))
@settings(max_examples=30, deadline=None)
def test_any_threshold_of_the_shares_give_the_values_back(data: st.DataObject, field: str) -> None:
    shares = data.draw(st.integers(2, 12))
    threshold = data.draw(st.integers(2, shares))
    most = PRIME[field] // 2
    secrets = data.draw(st.lists(st.integers(-most, most), min_size=1, max_size=5))
    params = ShamirShare(field=field, threshold=threshold, shares=shares)  # type: ignore[arg-type]
    rows = cpu.shamir_share(params, np.array(secrets), key=KEY)["shares"].tolist()
    x = data.draw(st.permutations(range(1, shares + 1)))[:threshold]
    for i, secret in enumerate(secrets):
        assert interpolate(PRIME[field], [(one, rows[one - 1][i]) for one in x]) == secret % PRIME[field]


@pytest.mark.parametrize("field", ["m31", "m61"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_float_is_the_nearest_integer_of_its_product_with_the_scale(run: Run, field: str, dtype: str) -> None:
    values = np.array([0.0, -0.0, 1.5, -2.5, 0.5 / 8, 1.5 / 8, -1.5 / 8, 1e-300, 1e5, -12345.678], dtype)
    params = {"field": field, "threshold": 3, "shares": 3, "scale": "8"}
    shares = run("shamir_share", params, values=values, key=KEY)["shares"].tolist()
    secrets = [round(Fraction(float(value)) * 8) for value in values]  # ties to even, as Python rounds
    assert [interpolate(PRIME[field], [(x, shares[x - 1][i]) for x in (1, 2, 3)]) for i in range(values.size)] == [
        secret % PRIME[field] for secret in secrets
    ]


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint32", "uint8"])
def test_integers_of_every_dtype_are_shared_as_they_are(run: Run, dtype: str) -> None:
    values = np.array([0, 1, 200], dtype)
    params = {"field": "m61", "threshold": 2, "shares": 2}
    one, two = run("shamir_share", params, values=values, key=KEY)["shares"].tolist()
    assert [(2 * a - b) % PRIME["m61"] for a, b in zip(one, two, strict=True)] == [0, 1, 200]


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_sums_of_shares_are_shares_of_the_sum(field: str) -> None:
    params = ShamirShare(field=field, threshold=3, shares=5)  # type: ignore[arg-type]
    values = [np.array([5, -7, 1000]), np.array([-50, 7, 24])]
    added = sum(
        cpu.shamir_share(params, one, key=bytes([at]) * 32)["shares"].astype(object) for at, one in enumerate(values)
    )
    for i, total in enumerate(sum(values).tolist()):  # type: ignore[union-attr]
        points = [(x, int(added[x - 1][i])) for x in (1, 3, 5)]
        assert interpolate(PRIME[field], points) == total % PRIME[field]


# Chi-square over 256 bins at p = 1e-6. A right sharing is accused once in a million runs of a fixed key: never.
_CRITICAL = float(stats.chi2.isf(1e-6, 255))


def _chi_square(field: str, words: Array) -> float:
    """Of the words' top eight bits; the one number of the top bin that is missing changes nothing that can be seen."""
    bins = np.bincount((words >> (int(field[1:]) - 8)).astype(np.int64), minlength=256)
    return float(((bins - words.size / 256) ** 2).sum() / (words.size / 256))


@pytest.mark.parametrize("field", ["m31", "m61"])
@pytest.mark.parametrize("secret", [0, 2**30 - 1])
def test_fewer_shares_than_the_threshold_are_uniform_whatever_the_value(field: str, secret: int) -> None:
    threshold, count = 3, 1_000_000
    params = ShamirShare(field=field, threshold=threshold, shares=4)  # type: ignore[arg-type]
    values = np.full(count, secret, np.int64)
    shares = cpu.shamir_share(params, values, key=KEY)["shares"]
    for row in shares:
        assert _chi_square(field, row) < _CRITICAL
    # Two together: a combination of them whose weights do not add up to what shows the value.
    prime = PRIME[field]
    assert _chi_square(field, ((shares[0] + shares[1].astype(np.uint64)) % prime)) < _CRITICAL
    pairs = (shares[0] >> (int(field[1:]) - 4)).astype(np.int64) * 16 + (shares[3] >> (int(field[1:]) - 4)).astype(int)
    assert _chi_square(field, pairs.astype(np.uint64) << np.uint64(int(field[1:]) - 8)) < _CRITICAL
    # What a sharing that pads with zeros gives, as one library did, and one that leaves the top bit out.
    assert _chi_square(field, values.astype(np.uint64)) > 1e6
    assert _chi_square(field, shares[0] >> 1) > 1e5


def test_a_key_gives_the_same_shares_again_and_another_key_none_of_them() -> None:
    params = ShamirShare(field="m61", threshold=2, shares=3)
    values = np.arange(1000)
    first, again, other = (cpu.shamir_share(params, values, key=key)["shares"] for key in (KEY, KEY, bytes(32)))
    assert np.array_equal(first, again)
    assert not (first == other).any()
    assert len(np.unique(first)) == first.size


def test_one_thread_gives_what_all_threads_give() -> None:
    values = np.arange(10_000)
    for field in ("m31", "m61"):
        params = ShamirShare(field=field, threshold=4, shares=5)  # type: ignore[arg-type]
        shares = cpu.shamir_share(params, values, key=KEY)["shares"]
        before = numba.get_num_threads()
        numba.set_num_threads(1)
        try:
            assert np.array_equal(cpu.shamir_share(params, values, key=KEY)["shares"], shares)
        finally:
            numba.set_num_threads(before)


@pytest.mark.parametrize(
    ("field", "values", "scale", "message"),
    [
        ("m31", [2**30], None, "1 of 1 values are beyond +-1073741823"),
        ("m31", [-(2**30), 5, 2**62, 0], None, "2 of 4 values are beyond +-1073741823"),
        ("m61", [2**60, -(2**63)], None, "2 of 2 values are beyond +-1152921504606846975"),
        ("m31", [1e9 + 0.25], "1.1", "1 of 1 values are beyond +-1073741823 when multiplied by the scale 1.1"),
        ("m61", [1e300, 1.0], "1e29", "2 of 2 values are beyond +-1152921504606846975 when multiplied"),
        ("m61", [-(2.0**60)], "1", "1 of 1 values are beyond"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_limit_and_without_them(
    run: Run, field: str, values: list[float], scale: str | None, message: str
) -> None:
    params: dict[str, Any] = {"field": field, "threshold": 2, "shares": 2} | ({"scale": scale} if scale else {})
    with pytest.raises(InvalidRequest) as refused:
        run("shamir_share", params, values=np.array(values), key=KEY)
    assert message in str(refused.value)
    for value in values:
        assert abs(value) < 10 or str(abs(value)) not in str(refused.value)


def test_the_largest_values_fit(run: Run) -> None:
    for field in ("m31", "m61"):
        most = PRIME[field] // 2
        params = {"field": field, "threshold": 2, "shares": 2}
        one, two = run("shamir_share", params, values=np.array([most, -most]), key=KEY)["shares"].tolist()
        assert [(2 * a - b) % PRIME[field] for a, b in zip(one, two, strict=True)] == [most, most + 1]
    largest = math.nextafter(2.0**60, 0)
    params = {"field": "m61", "threshold": 2, "shares": 2, "scale": "1"}
    one, two = run("shamir_share", params, values=np.array([largest]), key=KEY)["shares"].tolist()
    assert (2 * one[0] - two[0]) % PRIME["m61"] == int(largest)


@pytest.mark.parametrize(
    ("change", "dtype", "message"),
    [
        ({"threshold": 1}, "int64", "threshold should be at least 2, got 1"),
        ({"threshold": 4}, "int64", "3 shares could never reach the threshold 4"),
        ({"shares": 256}, "int64", "shares should be at most 255, got 256"),
        ({"field": "p32"}, "int64", "field should be 'm31' or 'm61'"),
        ({"scale": "0"}, "float64", "'0' is not above zero"),
        ({"scale": "8"}, "int64", "values of dtype int64 are integers: leave out scale"),
        ({}, "float32", "values of dtype float32 need a scale"),
        ({"seed": 1}, "int64", "there is no field 'seed' here"),
        ({"key": "00"}, "int64", "there is no field 'key' here"),
        ({}, "uint64", "dtype uint64 is not one of"),
    ],
)
def test_a_request_that_makes_no_sharing_is_refused_with_the_reason(
    change: dict[str, Any], dtype: Any, message: str
) -> None:
    params = {"field": "m31", "threshold": 2, "shares": 3, **change}
    with pytest.raises(InvalidRequest) as refused:
        SHARE.validate(params, {"values": ArrayInfo(dtype, (4,))})
    assert any(message in problem.detail for problem in refused.value.problems), refused.value


def test_more_elements_than_the_keystream_has_words_are_refused() -> None:
    params = {"field": "m61", "threshold": 2, "shares": 3}
    with pytest.raises(InvalidRequest, match="34359738369 elements, above the keystream's 34359738368 for m61"):
        SHARE.validate(params, {"values": ArrayInfo("uint8", (2**35 + 1,))})


def test_the_answer_says_which_security_it_has_and_who_saw_all_shares() -> None:
    answer = cpu.shamir_share(ShamirShare(field="m31", threshold=3, shares=5), np.arange(3), key=KEY)
    assert list(answer) == [output.name for output in SHARE.outputs]
    for phrase in ("Any 3 of the 5", "2 or fewer say nothing", "ChaCha20", "computational", "holds all the shares"):
        assert phrase in answer["statement"]


def test_values_are_secret_and_the_key_is_private() -> None:
    assert SHARE.randomness == "private"
    assert [given.secret for given in SHARE.inputs] == [True]


_REQUEST = {"field": "m61", "threshold": 30, "shares": 31}


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_the_grid_says_what_memory_a_sharing_takes(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "CHUNK", 2048)
    params = ShamirShare(field=field, threshold=2, shares=3)  # type: ignore[arg-type]
    grid = SHARE.grid(params, {"values": ArrayInfo("int64", (1024,))})
    device = EmulatedDevice(memory=grid.fixed + grid.each)
    gpu.shamir_share(params, np.arange(1024), key=KEY, device=device)
    assert len(device.launches) == grid.chunks == 2
    assert device.memory.peak == grid.fixed + grid.each


@pytest.mark.parametrize("options", [{}, {"refuse": "share"}])
def test_no_byte_of_values_shares_or_key_is_left_in_device_memory(options: dict[str, Any]) -> None:
    device = WatchedDevice(**options)
    params = ShamirShare.model_validate(_REQUEST)
    try:
        gpu.shamir_share(params, np.arange(1, 100), key=KEY, device=device)
    except DeviceFault:
        assert options
    assert KEY in device.copied
    assert device.left() == 0
