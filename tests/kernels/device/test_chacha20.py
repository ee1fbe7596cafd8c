"""ChaCha20 against the vectors of RFC 8439 and against OpenSSL, on the CPU and on every device."""

from pathlib import Path

import numpy as np
import pytest

from warpdesk_server.kernels.device.chacha20 import LANES, WORDS, block, keystream
from warpdesk_server.kernels.gpu.contract import Device
from warpdesk_server.kernels.gpu.source import Source

_SOURCE = Source(Path(__file__).with_name("chacha20.cu"))

# (where, key, counter, nonce, 64 bytes of keystream), all from RFC 8439.
_RFC8439 = [
    (
        "section 2.3.2",
        bytes(range(32)).hex(),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        "A.1 vector 1",
        "00" * 32,
        0,
        "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "A.1 vector 2",
        "00" * 32,
        1,
        "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        "A.1 vector 3",
        "00" * 31 + "01",
        1,
        "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        "A.1 vector 4",
        "00ff" + "00" * 30,
        2,
        "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        "A.1 vector 5",
        "00" * 32,
        0,
        "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]
_KEY = bytes.fromhex("bacfe17ae3015b1a68df1b1749c96751b0b1d55708b33ba4168ca621778ab9c6")
_NONCE = bytes(range(1, 13))
# A counter or key word passed as a signed number shows at bit 31 (CuPy pull request 4177).
_COUNTERS = [0, 1, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]


@pytest.mark.parametrize(("where", "key", "counter", "nonce", "expected"), _RFC8439, ids=[v[0] for v in _RFC8439])
def test_keystream_is_that_of_rfc_8439(where: str, key: str, counter: int, nonce: str, expected: str) -> None:
    words = keystream(bytes.fromhex(key), 16, counter, bytes.fromhex(nonce))
    assert words.astype("<u4").tobytes().hex() == expected


@pytest.mark.parametrize(("where", "key", "counter", "nonce", "expected"), _RFC8439, ids=[v[0] for v in _RFC8439])
def test_device_blocks_are_those_of_rfc_8439(
    device: Device, where: str, key: str, counter: int, nonce: str, expected: str
) -> None:
    assert _on(device, bytes.fromhex(key), 1, counter, bytes.fromhex(nonce)).tobytes().hex() == expected


@pytest.mark.parametrize("counter", _COUNTERS)
def test_keystream_at_any_counter_is_that_of_openssl(counter: int) -> None:
    words = min(40, 16 * (2**32 - counter))
    assert keystream(_KEY, words, counter, _NONCE).tobytes() == _openssl(4 * words, counter)


@pytest.mark.parametrize("counter", _COUNTERS)
def test_device_blocks_at_any_counter_are_those_of_openssl(device: Device, counter: int) -> None:
    blocks = min(33, 2**32 - counter)
    assert _on(device, _KEY, blocks, counter, _NONCE).tobytes() == _openssl(64 * blocks, counter)


@pytest.mark.parametrize("words", [0, 1, 15, 16, 17, 255, 256, 257, 100_003])
def test_keystream_of_any_length_is_that_of_openssl(words: int) -> None:
    assert keystream(_KEY, words, 7, _NONCE).tobytes() == _openssl(4 * words, 7)


def test_one_block_alone_equals_a_block_among_lanes() -> None:
    many = keystream(_KEY, 2 * WORDS * LANES, 5, _NONCE)
    one = np.empty(WORDS, np.uint32)
    for number in (0, 1, LANES - 1, LANES, 2 * LANES - 1):
        block(np.frombuffer(_KEY, np.uint32), 5 + number, *np.frombuffer(_NONCE, np.uint32).tolist(), one)
        assert np.array_equal(one, many[number * WORDS : (number + 1) * WORDS])


def test_no_bit_of_the_key_is_folded_away() -> None:
    # Each flip changes half of 2**15 bits, give or take five standard deviations.
    words = 1024
    base = keystream(_KEY, words)
    for bit in range(256):
        flipped = (int.from_bytes(_KEY, "little") ^ (1 << bit)).to_bytes(32, "little")
        distance = int(np.bitwise_count(keystream(flipped, words) ^ base).sum())
        assert abs(distance - 16 * words) < 5 * (8 * words) ** 0.5, f"key bit {bit}: {distance} bits differ"


def test_a_stream_never_wraps_its_counter() -> None:
    with pytest.raises(ValueError, match="17 words from block 4294967295 pass the last block"):
        keystream(_KEY, 17, 2**32 - 1)


@pytest.mark.parametrize(("key", "nonce"), [(bytes(31), bytes(12)), (bytes(33), bytes(12)), (bytes(32), bytes(8))])
def test_keys_and_nonces_of_other_lengths_are_refused(key: bytes, nonce: bytes) -> None:
    with pytest.raises(ValueError, match="a ChaCha20 key has 32 bytes and a nonce 12"):
        keystream(key, 1, 0, nonce)


def _on(
    device: Device, key: bytes, blocks: int, counter: int, nonce: bytes
) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    out = device.empty(16 * blocks, np.uint32)
    words = [device.to_device(np.frombuffer(text, "<u4")) for text in (key, nonce)]
    launch = device.kernel(_SOURCE, "chacha20_blocks")
    launch((-(-blocks // 32),), (32,), (words[0], np.uint32(counter), words[1], out, np.uint32(blocks)))
    host: np.ndarray[tuple[int], np.dtype[np.uint32]] = device.to_host(out)
    return host


def _openssl(count: int, counter: int) -> bytes:
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers", reason="OpenSSL is the peer here")
    algorithm = ciphers.algorithms.ChaCha20(_KEY, counter.to_bytes(4, "little") + _NONCE)
    stream: bytes = ciphers.Cipher(algorithm, mode=None).encryptor().update(bytes(count))
    return stream
