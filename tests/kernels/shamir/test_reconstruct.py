"""Shares give the values back, every extra one is checked, and corrupted ones are counted, named or left out."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice
from tests.kernels.shamir.conftest import Run
from tests.kernels.watched import WatchedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.shamir import cpu, gpu, spec
from warpdesk_server.kernels.shamir.field import DTYPE, PRIME
from warpdesk_server.kernels.shamir.spec import OPERATIONS, RECONSTRUCT, ShamirReconstruct, ShamirShare

KEY = bytes(range(7, 39))
Array = npt.NDArray[Any]


def shared(field: str, threshold: int, x: tuple[int, ...], values: Array, scale: str | None = None) -> Array:
    params = ShamirShare(field=field, threshold=threshold, shares=max(x), scale=scale)  # type: ignore[arg-type]
    return np.ascontiguousarray(cpu.shamir_share(params, values, key=KEY)["shares"][[one - 1 for one in x]])


def request(field: str, threshold: int, x: tuple[int, ...], **more: Any) -> dict[str, Any]:
    return {"field": field, "threshold": threshold, "x": list(x), **more}


def flip(shares: Array, row: int, elements: list[int]) -> None:
    """Another word of the field at each of these elements."""
    prime = np.uint64(2**31 - 1 if shares.dtype == np.uint32 else 2**61 - 1)
    for at, element in enumerate(elements):
        shares[row, element] = (np.uint64(shares[row, element]) + np.uint64(at + 1)) % prime


@pytest.mark.parametrize("field", ["m31", "m61"])
@pytest.mark.parametrize("x", [(1, 2, 3), (5, 1, 9), (2, 3, 4, 5, 6, 7, 8), (9, 8, 7, 1)])
def test_any_shares_in_any_order_give_the_integers_back(run: Run, field: str, x: tuple[int, ...]) -> None:
    most = PRIME[field] // 2
    values = np.array([0, 1, -1, most, -most, *range(-300, 300)])
    answer = run("shamir_reconstruct", request(field, 3, x), shares=shared(field, 3, x, values))
    assert answer["values"].dtype == np.int64
    assert answer["values"].tolist() == values.tolist()
    assert (answer["extra"], answer["corrupted"], answer["inconsistent"]) == (len(x) - 3, [], 0)


@given(st.data(), st.sampled_from(["m31", "m61"]))
@settings(max_examples=25, deadline=None)
def test_floats_come_back_within_half_a_step(data: st.DataObject, field: str) -> None:
    scale = data.draw(st.sampled_from(["1000", "65536", "0.5", "3.7"]))
    reach = 2.0**29 / float(scale)
    values = np.array(data.draw(st.lists(st.floats(-reach, reach), min_size=1, max_size=6)))
    x = tuple(data.draw(st.permutations(range(1, 8)))[:4])
    params = ShamirReconstruct(field=field, threshold=4, x=x, scale=scale)  # type: ignore[arg-type]
    back = cpu.shamir_reconstruct(params, shared(field, 4, x, values, scale))["values"]
    assert back.dtype == np.float64
    assert (np.abs(back - values) <= 0.5 / float(scale) * (1 + 1e-9) + np.abs(values) * 2.0**-52).all()


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_with_one_extra_share_a_corrupted_one_is_detected(run: Run, field: str) -> None:
    shares = shared(field, 3, (1, 2, 3, 4), np.arange(1000))
    for row in range(4):
        wrong = shares.copy()
        flip(wrong, row, [5, 17, 999])
        for correct in (False, True):
            with pytest.raises(InvalidRequest, match="the 4 shares disagree at 3 of 1000 elements: at least one is co"):
                run("shamir_reconstruct", request(field, 3, (1, 2, 3, 4), correct=correct), shares=wrong)


@pytest.mark.parametrize("field", ["m31", "m61"])
@pytest.mark.parametrize("row", range(5))
def test_with_two_extra_shares_a_corrupted_one_is_named_and_can_be_left_out(run: Run, field: str, row: int) -> None:
    x, values = (4, 9, 2, 7, 5), np.arange(-500, 500)
    shares = shared(field, 3, x, values)
    flip(shares, row, [0, 31, 512, 998])
    with pytest.raises(InvalidRequest) as refused:
        run("shamir_reconstruct", request(field, 3, x), shares=shares)
    assert f"disagree at 4 of 1000 elements: the share of x = {x[row]} is corrupted" in str(refused.value)
    answer = run("shamir_reconstruct", request(field, 3, x, correct=True), shares=shares)
    assert answer["values"].tolist() == values.tolist()
    assert (answer["extra"], answer["corrupted"], answer["inconsistent"]) == (1, [x[row]], 4)
    assert "without the 1 that does not" in answer["statement"]


def test_several_corrupted_shares_are_named_though_no_element_shows_them_all(run: Run) -> None:
    x, values = tuple(range(1, 10)), np.arange(700)
    shares = shared("m61", 3, x, values)
    for row, elements in ((1, [3]), (4, [3, 600]), (7, [601])):
        flip(shares, row, elements)
    answer = run("shamir_reconstruct", request("m61", 3, x, correct=True), shares=shares)
    assert answer["values"].tolist() == values.tolist()
    assert (answer["extra"], answer["corrupted"], answer["inconsistent"]) == (3, [2, 5, 8], 3)
    with pytest.raises(InvalidRequest, match="the shares of x = 2, 5, 8 are corrupted; with correct they are left out"):
        run("shamir_reconstruct", request("m61", 3, x), shares=shares)


@pytest.mark.parametrize("elements", [([0], [0]), ([0], [1]), (list(range(50)), list(range(25, 75)))])
def test_more_corrupted_shares_than_can_be_named_are_refused_and_never_guessed(
    run: Run, elements: tuple[list[int], list[int]]
) -> None:
    shares = shared("m31", 3, (1, 2, 3, 4, 5, 6), np.arange(100))
    flip(shares, 0, elements[0])
    flip(shares, 3, [*elements[1]])
    shares[3, elements[1][0]] ^= 64
    with pytest.raises(InvalidRequest, match="more than 1 are corrupted, and 6 of threshold 3 name no more"):
        run("shamir_reconstruct", request("m31", 3, (1, 2, 3, 4, 5, 6), correct=True), shares=shares)


def test_a_share_in_the_place_of_another_is_corrupted(run: Run) -> None:
    shares = shared("m31", 2, (1, 2, 3, 4), np.arange(50))
    shares[2] = shares[1]
    answer = run("shamir_reconstruct", request("m31", 2, (1, 2, 3, 4), correct=True), shares=shares)
    assert answer["values"].tolist() == list(range(50))
    assert answer["corrupted"] == [3]


def test_without_an_extra_share_the_answer_says_that_nothing_was_checked() -> None:
    params = ShamirReconstruct(field="m31", threshold=2, x=(1, 2))
    answer = cpu.shamir_reconstruct(params, shared("m31", 2, (1, 2), np.arange(5)))
    assert list(answer) == [output.name for output in RECONSTRUCT.outputs]
    assert "nothing was checked" in answer["statement"]


@pytest.mark.parametrize(
    ("field", "word"), [("m31", 2**31 - 1), ("m31", 2**32 - 1), ("m61", 2**61 - 1), ("m61", 2**63)]
)
@pytest.mark.parametrize("row", [0, 3])
def test_words_outside_the_field_are_refused_with_their_number(run: Run, field: str, word: int, row: int) -> None:
    shares = shared(field, 3, (1, 2, 3, 6), np.arange(600))
    shares[row, [0, 44, 599]] = word
    with pytest.raises(InvalidRequest) as refused:
        run("shamir_reconstruct", request(field, 3, (1, 2, 3, 6), correct=True), shares=shares)
    x, prime = (1, 2, 3, 6)[row], PRIME[field]
    sentence = f"3 words of the share of x = {x} are not below {prime}, the prime of {field}"
    assert [problem.detail for problem in refused.value.problems] == [sentence]


@pytest.mark.parametrize(
    ("change", "shape", "dtype", "message"),
    [
        ({"x": [1, 2]}, (2, 5), "uint32", "2 shares are fewer than the threshold 3"),
        ({"x": [1, 2, 2]}, (3, 5), "uint32", "x = 2 is named 2 times: one share counts once"),
        ({"x": [0, 1, 2]}, (3, 5), "uint32", "x[0] should be at least 1, got 0"),
        ({"x": [1, 2, 2**31 - 1]}, (3, 5), "uint32", "x = 2147483647 is not below 2147483647, the prime of m31"),
        ({"x": [1, 2, 3]}, (4, 5), "uint32", "4 rows for 3 numbers x"),
        ({"x": [1, 2, 3]}, (3, 5), "uint64", "dtype uint64, but shares in m31 are uint32"),
        ({"x": [1, 2, 3], "threshold": 1}, (3, 5), "uint32", "threshold should be at least 2, got 1"),
        ({"x": list(range(1, 257))}, (256, 5), "uint32", "x should hold at most 255 items, got 256"),
        ({"x": [1, 2, 3]}, (3, 0), "uint32", "the array is empty: its shape is [3, 0]"),
        ({"x": [1, 2, 3], "correct": "yes"}, (3, 5), "uint32", "correct should be true or false"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_with_the_reason(
    change: dict[str, Any], shape: tuple[int, ...], dtype: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        RECONSTRUCT.validate({"field": "m31", "threshold": 3, **change}, {"shares": ArrayInfo(dtype, shape)})
    assert any(message in problem.detail for problem in refused.value.problems), refused.value


def test_the_examples_give_the_values_their_comment_claims() -> None:
    for example, expected in zip(
        (RECONSTRUCT.example, *RECONSTRUCT.variants),
        ([250, -3, 1_000_000, 0], [0.5, -1234.25, 104858 / 2**20, 1e6]),
        strict=True,
    ):
        field = str(example.params["field"])
        params = ShamirReconstruct.model_validate(example.params, strict=False)
        rows = np.array(example.inputs["shares"]["data"], DTYPE[field])
        assert cpu.shamir_reconstruct(params, rows)["values"].tolist() == expected


def test_shares_are_secret_and_no_output_of_a_refusal_holds_one() -> None:
    assert [[given.secret for given in operation.inputs] for operation in OPERATIONS] == [[True], [True]]
    shares = shared("m61", 2, (1, 2, 3), np.arange(20))
    flip(shares, 1, [7])
    with pytest.raises(InvalidRequest) as refused:
        cpu.shamir_reconstruct(ShamirReconstruct(field="m61", threshold=2, x=(1, 2, 3)), shares)
    assert not any(str(word) in str(refused.value) for word in shares.ravel().tolist())


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_the_grid_says_what_memory_a_reconstruction_takes(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "CHUNK", 2560)
    params = ShamirReconstruct(field=field, threshold=3, x=(1, 2, 3, 4, 5))  # type: ignore[arg-type]
    shares = shared(field, 3, (1, 2, 3, 4, 5), np.arange(1024))
    grid = RECONSTRUCT.grid(params, {"shares": ArrayInfo(DTYPE[field], shares.shape)})
    device = EmulatedDevice(memory=grid.fixed + grid.each)
    assert gpu.shamir_reconstruct(params, shares, device=device)["values"].tolist() == list(range(1024))
    assert len(device.launches) == grid.chunks == 2
    assert device.memory.peak == grid.fixed + grid.each


def test_no_byte_of_shares_or_values_is_left_in_device_memory() -> None:
    device = WatchedDevice()
    shares = shared("m61", 3, (1, 2, 3, 4, 5), np.arange(1, 200))
    flip(shares, 4, [9])
    params = ShamirReconstruct(field="m61", threshold=3, x=(1, 2, 3, 4, 5), correct=True)
    gpu.shamir_reconstruct(params, shares, device=device)
    assert shares.tobytes() in device.copied
    assert device.left() == 0
