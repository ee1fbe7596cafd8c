"""ChaCha20 keystream on the CPU, sixteen blocks at a time in vector registers: the twin of the device header
chacha20.cuh.

ChaCha20 as in RFC 8439: a 32-byte key, a 32-bit block counter and a 96-bit nonce give blocks of sixteen 32-bit words,
which are the keystream's bytes read little-endian. A block depends on key, counter and nonce alone. So word j of a
stream needs block j // 16 and no block before it.

The rounds are written as LLVM vector instructions because neither NumPy nor Numba's own vectoriser keeps the sixteen
words of sixteen blocks in registers through eighty quarter rounds. Lane l of word w lies at index w * LANES + l.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

LANES = 16
WORDS = 16  # 32-bit words in a block

# "expa" "nd 3" "2-by" "te k", little-endian (RFC 8439 section 2.3).
_SIGMA = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)

# Columns, then diagonals (RFC 8439 section 2.3.1).
_DOUBLE_ROUND = (
    ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)


def _emit_rounds(builder: Any, word: Any, state: Any, out: Any) -> None:
    """Emit LLVM code of the ChaCha20 twin: load sixteen words (scalars or vectors of type `word`), ten double rounds,
    add the input, store."""
    bits = ir.IntType(32)

    def broadcast(value: int) -> Any:
        return ir.Constant(word, [value] * word.count if isinstance(word, ir.VectorType) else value)

    def rotate_left(value: Any, by: int) -> Any:
        name = f"llvm.fshl.v{word.count}i32" if isinstance(word, ir.VectorType) else "llvm.fshl.i32"
        fshl = builder.module.globals.get(name)
        if fshl is None:
            fshl = ir.Function(builder.module, ir.FunctionType(word, [word, word, word]), name)
        return builder.call(fshl, [value, value, broadcast(by)])

    state = builder.bitcast(state, word.as_pointer())
    out = builder.bitcast(out, word.as_pointer())
    initial = [builder.load(builder.gep(state, [bits(w)]), align=4) for w in range(WORDS)]

    before = builder.basic_block
    body = builder.append_basic_block("chacha20.double_round")
    after = builder.append_basic_block("chacha20.done")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(bits)
    index.add_incoming(bits(0), before)
    phis = [builder.phi(word) for _ in range(WORDS)]
    for phi, value in zip(phis, initial, strict=True):
        phi.add_incoming(value, before)
    x: list[Any] = list(phis)
    for quarter_rounds in _DOUBLE_ROUND:
        for target, addend, mixed, by in ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7)):
            # The four quarter rounds of a row are independent: interleaved, they fill the pipelines.
            for q in quarter_rounds:
                x[q[target]] = builder.add(x[q[target]], x[q[addend]])
                x[q[mixed]] = rotate_left(builder.xor(x[q[mixed]], x[q[target]]), by)
    following = builder.add(index, bits(1))
    index.add_incoming(following, body)
    for phi, value in zip(phis, x, strict=True):
        phi.add_incoming(value, body)
    builder.cbranch(builder.icmp_unsigned("<", following, bits(10)), body, after)
    builder.position_at_end(after)
    for w in range(WORDS):
        builder.store(builder.add(x[w], initial[w]), builder.gep(out, [bits(w)]), align=4)


def _rounds(word: Any) -> Any:
    def typed(_context: Any, state: Any, out: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointers = [
                context.make_array(kind)(context, builder, value=value).data
                for kind, value in zip(signature.args, arguments, strict=True)
            ]
            _emit_rounds(builder, word, *pointers)
            return context.get_dummy_value()

        return types.void(state, out), code

    return intrinsic(typed)


_rounds_of_one = _rounds(ir.IntType(32))
_rounds_of_lanes = _rounds(ir.VectorType(ir.IntType(32), LANES))


@njit(inline="never")
def block(key: NDArray[np.uint32], counter: int, n0: int, n1: int, n2: int, out: NDArray[np.uint32]) -> None:
    """Write one block of the ChaCha20 twin: key[8] -> out[16]; counter and nonce words are taken mod 2**32."""
    state = np.empty(WORDS, np.uint32)
    for w in range(4):
        state[w] = _SIGMA[w]
    for w in range(8):
        state[4 + w] = key[w]
    state[12] = np.uint32(counter)
    state[13] = np.uint32(n0)
    state[14] = np.uint32(n1)
    state[15] = np.uint32(n2)
    _rounds_of_one(state, out)


@njit(inline="never")
def prepare(state: NDArray[np.uint32], key: NDArray[np.uint32], n0: int, n1: int, n2: int) -> None:
    """Fill the state[16 * LANES] of the ChaCha20 twin: constants, key[8], a nonce in every lane; the caller sets
    counters."""
    for lane in range(LANES):
        for w in range(4):
            state[w * LANES + lane] = _SIGMA[w]
        for w in range(8):
            state[(4 + w) * LANES + lane] = key[w]
        state[13 * LANES + lane] = np.uint32(n0)
        state[14 * LANES + lane] = np.uint32(n1)
        state[15 * LANES + lane] = np.uint32(n2)


@njit(inline="never")
def blocks(state: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """Write LANES blocks of the ChaCha20 twin, lane by lane: state[16 * LANES] -> out[16 * LANES], the state
    unchanged."""
    _rounds_of_lanes(state, out)


@njit(cache=True)
def _keystream(key: NDArray[np.uint32], counter: int, nonce: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    state = np.empty(WORDS * LANES, np.uint32)
    lanes = np.empty(WORDS * LANES, np.uint32)
    prepare(state, key, nonce[0], nonce[1], nonce[2])
    for first in range(0, out.size, WORDS * LANES):
        for lane in range(LANES):
            state[12 * LANES + lane] = np.uint32(counter + first // WORDS + lane)
        blocks(state, lanes)
        for j in range(min(WORDS * LANES, out.size - first)):
            out[first + j] = lanes[(j % WORDS) * LANES + j // WORDS]


def keystream(key: bytes, words: int, counter: int = 0, nonce: bytes = bytes(12)) -> NDArray[np.uint32]:
    """The first `words` 32-bit words of the ChaCha20 twin's keystream that starts at block `counter`.

    Raises ValueError where the 32-bit counter would wrap: RFC 8439 never uses one counter twice under a key and nonce.
    """
    if len(key) != 32 or len(nonce) != 12:
        raise ValueError(f"a ChaCha20 key has 32 bytes and a nonce 12, got {len(key)} and {len(nonce)}")
    if not 0 <= counter <= counter + -(-words // WORDS) <= 2**32:
        raise ValueError(f"{words} words from block {counter} pass the last block, {2**32 - 1}")
    out = np.empty(words, np.uint32)
    _keystream(np.frombuffer(key, "<u4"), counter, np.frombuffer(nonce, "<u4"), out)
    return out
