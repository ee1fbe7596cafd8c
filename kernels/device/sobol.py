"""Sobol points in base 2 and their Owen scramble by a hash: the twin of the device header sobol.cuh.

Words are kept with their bits in reverse order until the end, as a scramble wants them: the lowest bit is then the half
of the unit interval that a point lies in.
"""

from functools import cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Joe and Kuo, Constructing Sobol sequences with better two-dimensional projections (SIAM Journal on Scientific
# Computing 30, 2008), their file new-joe-kuo-6.21201: dimensions 2 to 64, of each its primitive polynomial, the
# coefficients as the bits of a number, and its first direction numbers. Dimension 1 is van der Corput's sequence.
JOE_KUO: tuple[tuple[int, tuple[int, ...]], ...] = (
    (3, (1,)),
    (7, (1, 3)),
    (11, (1, 3, 1)),
    (13, (1, 1, 1)),
    (19, (1, 1, 3, 3)),
    (25, (1, 3, 5, 13)),
    (37, (1, 1, 5, 5, 17)),
    (41, (1, 1, 5, 5, 5)),
    (47, (1, 1, 7, 11, 19)),
    (55, (1, 1, 5, 1, 1)),
    (59, (1, 1, 1, 3, 11)),
    (61, (1, 3, 5, 5, 31)),
    (67, (1, 3, 3, 9, 7, 49)),
    (91, (1, 1, 1, 15, 21, 21)),
    (97, (1, 3, 1, 13, 27, 49)),
    (103, (1, 1, 1, 15, 7, 5)),
    (109, (1, 3, 1, 15, 13, 25)),
    (115, (1, 1, 5, 5, 19, 61)),
    (131, (1, 3, 7, 11, 23, 15, 103)),
    (137, (1, 3, 7, 13, 13, 15, 69)),
    (143, (1, 1, 3, 13, 7, 35, 63)),
    (145, (1, 3, 5, 9, 1, 25, 53)),
    (157, (1, 3, 1, 13, 9, 35, 107)),
    (167, (1, 3, 1, 5, 27, 61, 31)),
    (171, (1, 1, 5, 11, 19, 41, 61)),
    (185, (1, 3, 5, 3, 3, 13, 69)),
    (191, (1, 1, 7, 13, 1, 19, 1)),
    (193, (1, 3, 7, 5, 13, 19, 59)),
    (203, (1, 1, 3, 9, 25, 29, 41)),
    (211, (1, 3, 5, 13, 23, 1, 55)),
    (213, (1, 3, 7, 3, 13, 59, 17)),
    (229, (1, 3, 1, 3, 5, 53, 69)),
    (239, (1, 1, 5, 5, 23, 33, 13)),
    (241, (1, 1, 7, 7, 1, 61, 123)),
    (247, (1, 1, 7, 9, 13, 61, 49)),
    (253, (1, 3, 3, 5, 3, 55, 33)),
    (285, (1, 3, 1, 15, 31, 13, 49, 245)),
    (299, (1, 3, 5, 15, 31, 59, 63, 97)),
    (301, (1, 3, 1, 11, 11, 11, 77, 249)),
    (333, (1, 3, 1, 11, 27, 43, 71, 9)),
    (351, (1, 1, 7, 15, 21, 11, 81, 45)),
    (355, (1, 3, 7, 3, 25, 31, 65, 79)),
    (357, (1, 3, 1, 1, 19, 11, 3, 205)),
    (361, (1, 1, 5, 9, 19, 21, 29, 157)),
    (369, (1, 3, 7, 11, 1, 33, 89, 185)),
    (391, (1, 3, 3, 3, 15, 9, 79, 71)),
    (397, (1, 3, 7, 11, 15, 39, 119, 27)),
    (425, (1, 1, 3, 1, 11, 31, 97, 225)),
    (451, (1, 1, 1, 3, 23, 43, 57, 177)),
    (463, (1, 3, 7, 7, 17, 17, 37, 71)),
    (487, (1, 3, 1, 5, 27, 63, 123, 213)),
    (501, (1, 1, 3, 5, 11, 43, 53, 133)),
    (529, (1, 3, 5, 5, 29, 17, 47, 173, 479)),
    (539, (1, 3, 3, 11, 3, 1, 109, 9, 69)),
    (545, (1, 1, 1, 5, 17, 39, 23, 5, 343)),
    (557, (1, 3, 1, 5, 25, 15, 31, 103, 499)),
    (563, (1, 1, 1, 11, 11, 17, 63, 105, 183)),
    (601, (1, 1, 5, 11, 9, 29, 97, 231, 363)),
    (607, (1, 1, 5, 15, 19, 45, 41, 7, 383)),
    (617, (1, 3, 7, 7, 31, 19, 83, 137, 221)),
    (623, (1, 1, 1, 3, 23, 15, 111, 223, 83)),
    (631, (1, 1, 5, 13, 31, 15, 55, 25, 161)),
    (637, (1, 1, 3, 13, 25, 47, 39, 87, 257)),
)
DIMENSIONS = 1 + len(JOE_KUO)
BITS = 32


@cache
def directions() -> NDArray[np.uint32]:
    """The direction numbers of Sobol points with reversed bits, (DIMENSIONS, BITS): column b belongs to bit b of the
    index."""
    table = np.empty((DIMENSIONS, BITS), np.uint32)
    for dimension, (polynomial, first) in enumerate(((1, ()), *JOE_KUO)):
        degree, numbers = len(first), list(first)
        for bit in range(degree, BITS):
            # m_i = 2 a_1 m_(i-1) ^ 4 a_2 m_(i-2) ^ ... ^ 2^s m_(i-s) ^ m_(i-s), where a_s is 1.
            number = numbers[bit - degree] if degree else 1
            for back in range(1, degree + 1):
                if polynomial >> (degree - back) & 1:
                    number ^= numbers[bit - back] << back
            numbers.append(number)
        # The number m_b / 2^(b + 1) as a fraction, its bits from the point on being the word's from the lowest on.
        table[dimension] = [int(f"{number:0{bit + 1}b}"[::-1], 2) for bit, number in enumerate(numbers)]
    return table


@njit(cache=True, forceinline=True)
def sobol(index, bits, directions):  # type: ignore[no-untyped-def]
    """The point `index` < 2^bits in one dimension, with reversed bits, as in the device header; indices count in the
    natural order, not in Gray's."""
    word = np.uint32(0)
    for bit in range(bits):
        word ^= directions[bit] if index >> bit & 1 else np.uint32(0)
    return word


@njit(cache=True, forceinline=True)
def owen_scramble(word, seed):  # type: ignore[no-untyped-def]
    """An Owen scramble of a point with reversed bits, as in the device header: each bit is flipped by a hash of those
    below it and of the seed. The result has its bits in their usual order: / 2^32 it is the point.

    The hash is that of Laine and Karras (Stratified sampling for stochastic transparency, EGSR 2011) with Vegdahl's
    constants (2021), as in pbrt 4. Burley (Practical hash-based Owen scrambling, JCGT 9, 2020) measured its like.
    """
    word = np.uint32(word ^ np.uint32(word * np.uint32(0x3D20ADEA)))
    word = np.uint32(word + seed)
    word = np.uint32(word * np.uint32((seed >> np.uint32(16)) | np.uint32(1)))
    word = np.uint32(word ^ np.uint32(word * np.uint32(0x05526C56)))
    word = np.uint32(word ^ np.uint32(word * np.uint32(0x53A22864)))
    return reversed_bits(word)


@njit(cache=True, forceinline=True)
def reversed_bits(word):  # type: ignore[no-untyped-def]
    """A 32-bit word with its bits in reverse order."""
    word = np.uint32(
        ((word >> np.uint32(1)) & np.uint32(0x55555555)) | ((word & np.uint32(0x55555555)) << np.uint32(1))
    )
    word = np.uint32(
        ((word >> np.uint32(2)) & np.uint32(0x33333333)) | ((word & np.uint32(0x33333333)) << np.uint32(2))
    )
    word = np.uint32(
        ((word >> np.uint32(4)) & np.uint32(0x0F0F0F0F)) | ((word & np.uint32(0x0F0F0F0F)) << np.uint32(4))
    )
    word = np.uint32(
        ((word >> np.uint32(8)) & np.uint32(0x00FF00FF)) | ((word & np.uint32(0x00FF00FF)) << np.uint32(8))
    )
    return np.uint32((word >> np.uint32(16)) | (word << np.uint32(16)))
