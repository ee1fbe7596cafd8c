"""The server recovers the survivors' exact sum, and refuses what would open a vector or could overflow."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cudasim.device import EmulatedDevice
from tests.kernels.secure_aggregation.rounds import Round, validate
from tests.kernels.watched import WatchedDevice
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.kernels.gpu.faults import DeviceFault
from warpdesk_server.kernels.problems import InvalidRequest
from warpdesk_server.kernels.secure_aggregation import cpu, gpu, spec
from warpdesk_server.kernels.secure_aggregation.spec import OPERATION, STATEMENT
from warpdesk_server.kernels.secure_aggregation.unmask import masks


def _run(params: dict[str, Any], inputs: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    return cpu.secure_aggregation(validate(params, inputs), **inputs)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from([32, 64]), st.integers(2, 7), st.sampled_from([1, 7, 8, 16, 130, 257]))
def test_the_sum_of_the_survivors_is_recovered_exactly(data: st.DataObject, bits: int, clients: int, dim: int) -> None:
    ids = data.draw(st.lists(st.integers(0, 2**63 - 1), min_size=clients, max_size=clients, unique=True))
    bound = (2 ** (bits - 1) - 1) // clients  # as large as the proof allows
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    played = Round({c: random.integers(-bound, bound, dim, endpoint=True) for c in ids}, bits, bound)
    gone = tuple(data.draw(st.permutations(ids))[: data.draw(st.integers(0, clients - clients // 2 - 1))])
    answer = _run(*played.request(gone))
    expected = sum(vector.astype(object) for client, vector in played.vectors.items() if client not in gone)
    assert answer["sum"].dtype == np.int64
    assert answer["sum"].tolist() == list(expected)
    assert answer["survivors"] == [client for client in ids if client not in gone]
    assert answer["overflow_proof"] == {"max_abs_sum": clients * bound, "limit": 2 ** (bits - 1) - 1}


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from([32, 64]), st.integers(6, 14))
def test_the_sum_is_recovered_where_each_masks_with_its_neighbours_alone(
    data: st.DataObject, bits: int, places: int
) -> None:
    ring = tuple(data.draw(st.lists(st.integers(0, 2**63 - 1), min_size=places, max_size=places, unique=True)))
    degree = 2 * data.draw(st.integers(1, (places - 2) // 2))
    silent = data.draw(st.sets(st.sampled_from(ring), max_size=1))
    bound = (2 ** (bits - 1) - 1) // places
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = {c: random.integers(-bound, bound, 33, endpoint=True) for c in ring if c not in silent}
    played = Round(vectors, bits, bound, degree=degree, ring=ring)
    gone = tuple(data.draw(st.sets(st.sampled_from(sorted(vectors)), max_size=2)))
    request, inputs = played.request(gone)
    survivors = set(vectors) - set(gone)
    left = {c: sum(played.together(c, other) for other in survivors) for c in vectors}
    if min(left.values()) < request["threshold"]:
        short = next(c for c in ring if c in vectors and left[c] < request["threshold"])
        sentence = f"{left[short]} survivors share secrets of client {short}, fewer than threshold"
        assert any(sentence in problem for problem in _problems(request, inputs))
        return

    answer = _run(request, inputs)

    expected = sum(vector.astype(object) for client, vector in vectors.items() if client not in gone)
    assert answer["sum"].tolist() == list(expected)


def _ring_of_eight(dropped: tuple[int, ...] = (4,), **params: Any) -> tuple[Any, Any]:
    vectors = {c: np.arange(4) for c in (5, 1, 4, 8, 2, 7, 3)}
    return Round(vectors, 32, 10, degree=4, ring=(5, 1, 4, 8, 2, 7, 6, 3)).request(dropped, **params)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda request: request["pairs"].append((4, 7)), "clients 4 and 7 are no neighbours on the ring"),
        (lambda request: request["pairs"].pop(), "3 of 4 pairs of a dropped client and a survivor are named; (4, 2)"),
        (lambda request: request.update(threshold=2), "threshold 2 of 5 clients of a sharing set must lie between 3"),
        (lambda request: request.update(threshold=6), "threshold 6 of 5 clients of a sharing set must lie between 3"),
        (lambda request: request.update(threshold=5), "3 survivors share secrets of client 5, fewer than threshold 5"),
        (lambda request: request.update(ring=request["ring"][1:]), "client 5 is not on the ring"),
        (lambda request: request["ring"].append(1), "client 1 is named 2 times"),
        (lambda request: request.update(degree=3), "degree should"),
        (lambda request: request.update(degree=8), "degree 8 on a ring of 8 is everybody: leave degree and ring out"),
        (lambda request: request.pop("degree"), "a ring needs a degree"),
        (lambda request: request.pop("ring"), "degree 4 on a ring of 0 is everybody"),
    ],
)
def test_a_ring_that_does_not_fit_is_refused_with_the_reason(change: Any, message: str) -> None:
    request, inputs = _ring_of_eight()
    assert _problems(request, inputs) == []
    change(request)
    assert any(message in problem for problem in _problems(request, inputs))


def test_a_mask_of_a_pair_that_is_none_would_be_seen_in_the_sum() -> None:
    """Taken for a complete graph, the masks of clients that are no neighbours are missing from the sum."""
    request, inputs = _ring_of_eight(dropped=())
    complete = {name: value for name, value in request.items() if name not in ("degree", "ring")}
    complete["threshold"] = 4
    assert _run(request, inputs)["sum"].tolist() == [7 * x for x in range(4)]
    assert _run(complete, inputs)["sum"].tolist() == [7 * x for x in range(4)], "nobody dropped: no pair is left over"
    request, inputs = _ring_of_eight()
    complete = {name: value for name, value in request.items() if name not in ("degree", "ring")}
    complete["threshold"] = 4
    assert any("4 of 6 pairs" in problem for problem in _problems(complete, inputs))


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dim", [1, 15, 16, 17, 127, 128, 129, 255, 256, 257, 1023, 1025])
def test_unmasking_is_the_definition_word_for_word(bits: int, dim: int) -> None:
    # Independent and slow: OpenSSL's keystream and NumPy's wrapping integers.
    random = np.random.default_rng([bits, dim])
    dtype = np.dtype(f"<u{bits // 8}")
    masked = random.integers(0, 2**bits, (3, dim), dtype, endpoint=False)
    self_seeds, pair_seeds = (random.integers(0, 256, (n, 32), np.uint8) for n in (3, 6))
    survivors, gone = [20, 3, 11], [7, 30]
    pairs = [(g, s) for g in gone for s in survivors]
    expected = masked.sum(axis=0, dtype=dtype)
    for seed in self_seeds:
        expected -= _openssl(seed, b"self", dtype, dim)
    for (g, s), seed in zip(pairs, pair_seeds, strict=True):
        mask = _openssl(seed, b"pair", dtype, dim)
        expected += -mask if s < g else mask
    params = OPERATION.params.model_validate(
        {
            "round_id": "r",
            "modulus_bits": bits,
            "threshold": 3,
            "survivors": survivors,
            "dropped": gone,
            "pairs": pairs,
            "quantisation": {"clip": str(2**bits), "scale": "1"},
            "output": "int",
        },
        strict=False,
    )
    answer = cpu.secure_aggregation(params, masked, self_seeds, pair_seeds)
    assert answer["sum"].tolist() == expected.view(f"<i{bits // 8}").tolist()


def test_one_thread_gives_what_all_threads_give() -> None:
    params, inputs = Round({c: np.arange(5000) * c for c in (1, 2, 3)}, 32, 20_000).request((2,))
    expected = _run(params, inputs)["sum"]
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert np.array_equal(_run(params, inputs)["sum"], expected)
    finally:
        numba.set_num_threads(before)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_device_gives_the_same_words_however_the_columns_are_cut(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    params, inputs = Round({c: np.arange(100) - c for c in (4, 9, 1)}, bits, 1000).request((9,))
    expected, parsed = _run(params, inputs)["sum"], validate(params, inputs)
    for chunk in (1, 2 * 33, 10**6):
        monkeypatch.setattr(spec, "CHUNK", chunk)
        grid = OPERATION.grid(parsed, _infos(inputs))
        for resident in (1, 2, 100):
            device = EmulatedDevice(memory=grid.fixed + resident * grid.each)
            assert np.array_equal(gpu.secure_aggregation(parsed, **inputs, device=device)["sum"], expected)
            assert len(device.launches) == -(-grid.chunks // resident)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dim", [1, 100, 4099])
def test_the_grid_says_what_memory_a_job_takes(bits: int, dim: int) -> None:
    params, inputs = Round({c: np.arange(dim) - c for c in (4, 9, 1)}, bits, 10_000).request((9,))
    device, parsed = EmulatedDevice(), validate(params, inputs)
    gpu.secure_aggregation(parsed, **inputs, device=device)
    grid = OPERATION.grid(parsed, _infos(inputs))
    assert device.memory.peak == grid.fixed + grid.chunks * grid.each


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dim", [5, 2048, 5000])
def test_masks_and_rows_may_be_shared_out_among_blocks(bits: int, dim: int) -> None:
    params, inputs = Round({c: np.arange(dim) % 97 - c for c in range(1, 14)}, bits, 1000).request((2, 5))
    expected, parsed = _run(params, inputs)["sum"], validate(params, inputs)
    for multiprocessors in (1, 2, 3, 8, 500):
        device = EmulatedDevice()
        device.multiprocessors = multiprocessors
        assert np.array_equal(gpu.secure_aggregation(parsed, **inputs, device=device)["sum"], expected)


def test_work_is_counted_in_words_of_vectors_and_of_masks() -> None:
    params, inputs = Round({c: np.arange(10) for c in (1, 2, 3)}, 64, 10).request((3,))
    assert OPERATION.cost(validate(params, inputs), _infos(inputs)).work == 2 * 10 + (2 + 2) * 10 * 2


def test_fixed_point_is_decoded_to_values_and_means() -> None:
    vectors = {1: np.array([65536, -32768]), 2: np.array([3 * 65536, 1])}
    played = Round(vectors, 32, 0)
    quantisation = {"clip": "8", "scale": "65536", "max_weight": 10}
    total = _run(*played.request(quantisation=quantisation, output="float"))["sum"]
    assert total.tolist() == [4.0, -0.5 + 1 / 65536]
    mean = _run(*played.request(quantisation=quantisation, output="mean", total_weight=4))["sum"]
    assert mean.tolist() == [1.0, (-32768 + 1) / 65536 / 4]
    plain = _run(*played.request(quantisation={"clip": "8", "scale": "65536"}, output="mean"))["sum"]
    assert plain.tolist() == [2.0, (-32768 + 1) / 65536 / 2]


def test_the_answer_says_whom_it_trusts_and_that_it_is_not_private_noise() -> None:
    answer = _run(*Round({1: np.arange(3), 2: np.arange(3)}, 32, 10).request())
    assert list(answer) == [output.name for output in OPERATION.outputs]
    assert answer["statement"] == STATEMENT
    assert "trusted like the aggregation server" in STATEMENT
    assert "secure aggregation is not differential privacy" in STATEMENT
    assert answer["round_id"] == "round"


def test_the_examples_give_the_sum_their_comment_claims() -> None:
    for example in (OPERATION.example, *OPERATION.variants):
        inputs = {name: np.array(value["data"], value["dtype"]) for name, value in example.inputs.items()}
        assert _run(example.params, inputs)["sum"].tolist() == [2.0, -1.0, 0.0, 16.0]


def test_seeds_are_secret_inputs_and_never_parameters() -> None:
    assert {i.name: i.secret for i in OPERATION.inputs} == {"masked": False, "self_seeds": True, "pair_seeds": True}
    assert not any("seed" in name for name in OPERATION.params.model_fields)


_CAPACITY = [  # clip, scale, clients, max_weight, bits, largest sum, accepted
    ("8", "65536", 10, 1, 32, 5_242_880, True),
    ("8", "262144", 1024, 1, 32, 2**31, False),
    ("8", "262144", 1023, 1, 32, 2**31 - 2**21, True),
    ("1", "16777216", 127, 1, 32, 2_130_706_432, True),
    ("1", "1048576", 10, 60_000, 32, 629_145_600_000, False),
    ("4", "4294967296", 100_000, 1000, 64, 1_717_986_918_400_000_000, True),
]


@pytest.mark.parametrize(("clip", "scale", "clients", "weight", "bits", "largest", "accepted"), _CAPACITY)
def test_a_sum_that_could_overflow_is_refused_with_the_numbers(
    clip: str, scale: str, clients: int, weight: int, bits: int, largest: int, accepted: bool
) -> None:
    survivors = list(range(min(clients, 65_000)))
    params = {
        "round_id": "r",
        "modulus_bits": bits,
        "threshold": clients // 2 + 1,
        "survivors": survivors,
        "dropped": list(range(65_000, clients)),
        "quantisation": {"clip": clip, "scale": scale, "max_weight": weight},
    }
    parsed = OPERATION.params.model_validate(params, strict=False)
    assert parsed.max_abs_sum == largest
    problems = _problems(params, {"masked": np.empty((len(survivors), 1), f"u{bits // 8}")})
    assert any(f"= {largest}, above {2 ** (bits - 1) - 1}" in problem for problem in problems) != accepted


def _change(**params: Any) -> Any:
    return lambda request, inputs: request.update(params)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change(survivors=[1, 2, 2]), "client 2 is named 2 times"),
        (
            _change(dropped=[3], survivors=[1, 2, 3]),
            "client 3 is also a survivor: unmasking both ways would open its vector",
        ),
        (
            lambda request, inputs: request["pairs"].append([1, 2]),
            "pair seeds of client 1, whose self seed is given too: both together open its vector",
        ),
        (_change(pairs=[[4, 1], [4, 2], [4, 4]]), "client 4 is not among the survivors"),
        (_change(pairs=[[5, 1], [4, 2], [4, 3]]), "client 5 is not among the dropped"),
        (_change(pairs=[[4, 1], [4, 2], [4, 2]]), "the pair (4, 2) is named more than once"),
        (
            _change(pairs=[[4, 1], [4, 2]]),
            "2 of 3 pairs of a dropped client and a survivor are named; (4, 3) is missing",
        ),
        (_change(threshold=2), "threshold 2 of 4 clients must lie between 3, more than half, and 4"),
        (_change(threshold=5), "threshold 5 of 4 clients must lie between 3, more than half, and 4"),
        (_change(threshold=4), "3 survivors are fewer than threshold 4"),
        (_change(modulus_bits=64), "dtype uint32, but modulus_bits is 64"),
        (_change(modulus_bits=16), "should be 32 or 64"),
        (_change(modulus_bits=32.0), "should be the integer 32, got 32.0"),
        (_change(survivors=[1, 2]), "3 rows for 2 survivors"),
        (_change(quantisation={"clip": "0", "scale": "1"}), "'0' is not above zero"),
        (_change(quantisation={"clip": "NaN", "scale": "1"}), "'NaN' is not a decimal number"),
        (_change(quantisation={"clip": "x", "scale": "1"}), "'x' is not a decimal number"),
        (_change(quantisation={"clip": "0.1", "scale": "1"}), "clip * scale rounds to 0"),
        (_change(quantisation={"clip": "9e8", "scale": "1"}), "4 clients * weight 1 * 900000000"),
        (
            _change(quantisation={"clip": "1", "scale": "1", "max_weight": 2}, output="mean"),
            "needs the sum of their weights",
        ),
        (_change(total_weight=9), "3 weights from 1 to 1 cannot add up to 9"),
        (_change(survivors=[-1, 2, 3]), "survivors[0] should be at least 0, got -1"),
        (_change(self_seeds=[[1]]), "there is no field"),
        (lambda request, inputs: inputs.update(self_seeds=inputs["self_seeds"][:2]), "shape [2, 32], expected [3, 32]"),
        (lambda request, inputs: inputs.update(pair_seeds=inputs["pair_seeds"][:2]), "shape [2, 32], expected [3, 32]"),
        (lambda request, inputs: inputs.update(pair_seeds=inputs["pair_seeds"][:, :31].copy()), "shape [3, 31]"),
        (lambda request, inputs: inputs.pop("pair_seeds"), "3 pairs are named, but no seeds are given"),
        (lambda request, inputs: inputs.pop("self_seeds"), "needs the input 'self_seeds'"),
        (lambda request, inputs: inputs.update(masked=inputs["masked"][0]), "has rank 1, expected rank 2"),
        (
            lambda request, inputs: inputs.update(masked=inputs["masked"].astype(np.float64)),
            "dtype float64 is not one of",
        ),
        (lambda request, inputs: inputs.update(masked=inputs["masked"][:, :0]), "the array is empty"),
    ],
)
def test_a_request_that_must_not_be_answered_is_refused_with_the_reason(change: Any, message: str) -> None:
    request, inputs = Round({c: np.arange(4) for c in (1, 2, 3, 4)}, 32, 10).request((4,))
    change(request, inputs)
    assert any(message in problem for problem in _problems(request, inputs))


def test_one_client_alone_is_refused() -> None:
    problems = _problems(
        {
            "round_id": "r",
            "modulus_bits": 32,
            "threshold": 1,
            "survivors": [1],
            "quantisation": {"clip": "1", "scale": "1"},
        },
        {"masked": np.zeros((1, 2), np.uint32), "self_seeds": np.zeros((1, 32), np.uint8)},
    )
    assert any("a sum over one client is that client's vector" in problem for problem in problems)


def test_of_very_many_problems_the_first_twenty_are_put_into_words() -> None:
    request, inputs = Round({c: np.arange(4) for c in (1, 2, 3)}, 32, 10).request((3,))
    with pytest.raises(InvalidRequest) as refused:
        OPERATION.validate({**request, "pairs": [0] * 500}, _infos(inputs))
    assert (len(refused.value.problems), refused.value.count) == (20, 500)


def test_a_seed_given_twice_is_refused() -> None:
    request, inputs = Round({c: np.arange(4) for c in (1, 2, 3)}, 32, 10).request((3,))
    for name, rows in (
        ("self_seeds", "row 0 of self_seeds and row 1 of self_seeds"),
        ("pair_seeds", "row 0 of self_seeds and row 1 of pair_seeds"),
    ):
        wrong = {**inputs, name: inputs[name].copy()}
        wrong[name][1] = inputs["self_seeds"][0]
        with pytest.raises(InvalidRequest, match=f"{rows} are the same seed"):
            _run(request, wrong)


@pytest.mark.parametrize("name", ["self_seeds", "pair_seeds"])
def test_a_wrong_bit_in_a_seed_is_noticed_because_the_sum_leaves_its_proven_range(name: str) -> None:
    request, inputs = Round({c: np.arange(64) for c in (1, 2, 3)}, 32, 100).request((3,))
    inputs[name] = inputs[name].copy()
    inputs[name][0, 31] ^= 0x80
    with pytest.raises(InvalidRequest, match="coordinates of the unmasked sum exceed 200, which no sum of 2 vectors"):
        _run(request, inputs)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("beyond", "refused"), [(0, False), (1, True)])
def test_the_range_of_the_sum_is_that_of_the_survivors_not_of_all_clients(
    bits: int, beyond: int, refused: bool
) -> None:
    # Five clients with weights up to 3, two of them gone: 3 * 3 * 100 is the most, where all five could reach 1500.
    for sign in (1, -1):
        vectors = {c: np.array([0, sign * 300]) for c in (1, 2, 3, 4, 5)}
        vectors[2][1] += sign * beyond
        played = Round(vectors, bits, 100)
        quantisation = {"clip": "100", "scale": "1", "max_weight": 3}
        request, inputs = played.request((4, 5), quantisation=quantisation)
        if refused:
            with pytest.raises(InvalidRequest, match="1 of 2 coordinates of the unmasked sum exceed 900, which no sum"):
                _run(request, inputs)
        else:
            answer = _run(request, inputs)
            assert answer["sum"].tolist() == [0, sign * 900]
            assert answer["overflow_proof"]["max_abs_sum"] == 1500


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("chunk", [1, 10**6])
def test_no_byte_of_seeds_or_vectors_is_left_in_device_memory(
    bits: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "CHUNK", chunk)
    request, inputs = Round({c: np.arange(1, 100) - c for c in (4, 9, 1)}, bits, 1000).request((9,))
    device = WatchedDevice()
    gpu.secure_aggregation(validate(request, inputs), **inputs, device=device)
    assert inputs["self_seeds"].tobytes() + inputs["pair_seeds"].tobytes() in device.copied
    assert device.left() == 0


@pytest.mark.parametrize("options", [{"refuse": "unmask"}, {"memory": 128 + 16 + 16 + 400}])
def test_no_byte_is_left_where_the_job_fails(options: dict[str, Any]) -> None:
    request, inputs = Round({c: np.arange(1, 101) - c for c in (4, 9, 1)}, 32, 1000).request((9,))
    device = WatchedDevice(**options)
    with pytest.raises(DeviceFault):
        gpu.secure_aggregation(validate(request, inputs), **inputs, device=device)
    assert device.given
    assert device.left() == 0


def test_the_copy_of_the_seeds_is_zeroed_and_the_callers_arrays_are_not() -> None:
    request, inputs = Round({c: np.arange(4) for c in (1, 2, 3)}, 32, 10).request((3,))
    before = {name: array.tobytes() for name, array in inputs.items()}
    with masks(validate(request, inputs), inputs["self_seeds"], inputs["pair_seeds"]) as remove:
        assert remove.seeds.tobytes() == before["self_seeds"] + before["pair_seeds"]
    assert not remove.seeds.any()
    assert {name: array.tobytes() for name, array in inputs.items()} == before


def test_a_vector_of_another_round_is_noticed() -> None:
    played = Round({c: np.arange(64) for c in (1, 2, 3)}, 64, 100)
    request, inputs = played.request()
    other = Round(played.vectors, 64, 100, round_id="the next", secrets=played.secrets)
    inputs["masked"][1] = other.masked(2)
    with pytest.raises(InvalidRequest, match="does not belong to this round"):
        _run(request, inputs)


def _infos(inputs: dict[str, npt.NDArray[Any]]) -> dict[str, ArrayInfo]:
    return {name: ArrayInfo(array.dtype.name, array.shape) for name, array in inputs.items()}


def _problems(request: dict[str, Any], inputs: dict[str, npt.NDArray[Any]]) -> list[str]:
    seeds = {"self_seeds": np.zeros((len(inputs["masked"]), 32), np.uint8)} if set(inputs) == {"masked"} else {}
    try:
        validate(request, {**inputs, **seeds})
    except InvalidRequest as refused:
        return [problem.detail for problem in refused.problems]
    return []


def _openssl(seed: npt.NDArray[np.uint8], name: bytes, dtype: Any, dim: int) -> npt.NDArray[Any]:
    algorithm = algorithms.ChaCha20(seed.tobytes(), bytes(4) + name + bytes(8))
    return np.frombuffer(Cipher(algorithm, mode=None).encryptor().update(bytes(dim * dtype.itemsize)), dtype)
