"""Published prices of options and published words of Philox, each group with its source.

Rates are continuous, times in years; q is the dividend yield. The option tables are those that QuantLib's test suite
(europeanoption.cpp, barrieroption.cpp, asianoptions.cpp) transcribes from the publications named here.
"""

from typing import NamedTuple

# Random123 (D. E. Shaw Research), tests/kat_vectors, philox4x32 with 10 rounds: (counter, key, words).

PHILOX4X32_10 = (
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


class European(NamedTuple):
    option: str
    strike: float
    spot: float
    q: float
    r: float
    maturity: float
    volatility: float
    price: float


# Haug, The Complete Guide to Option Pricing Formulas (1998), pp. 2-8, 24 and 27.
HAUG_EUROPEAN = (
    European("call", 65.0, 60.0, 0.0, 0.08, 0.25, 0.3, 2.1334),
    European("put", 95.0, 100.0, 0.05, 0.1, 0.5, 0.2, 2.4648),
    European("put", 19.0, 19.0, 0.1, 0.1, 0.75, 0.28, 1.7011),
    European("call", 19.0, 19.0, 0.1, 0.1, 0.75, 0.28, 1.7011),
    European("call", 1.6, 1.56, 0.08, 0.06, 0.5, 0.12, 0.0291),
    European("put", 70.0, 75.0, 0.05, 0.1, 0.5, 0.35, 4.087),
    European("call", 100.0, 90.0, 0.1, 0.1, 0.1, 0.15, 0.0205),
    European("call", 100.0, 100.0, 0.1, 0.1, 0.1, 0.25, 3.1217),
    European("call", 100.0, 110.0, 0.1, 0.1, 0.1, 0.35, 11.1381),
    European("call", 100.0, 90.0, 0.1, 0.1, 0.5, 0.25, 2.7026),
    European("call", 100.0, 100.0, 0.1, 0.1, 0.5, 0.35, 9.3679),
    European("put", 100.0, 110.0, 0.1, 0.1, 0.1, 0.15, 0.0408),
    European("put", 100.0, 90.0, 0.1, 0.1, 0.1, 0.35, 10.8479),
    European("put", 100.0, 100.0, 0.1, 0.1, 0.5, 0.15, 4.0232),
    European("put", 100.0, 110.0, 0.1, 0.1, 0.5, 0.25, 3.2734),
    European("call", 40.0, 42.0, 0.08, 0.04, 0.75, 0.35, 5.0975),
)


# The same, pp. 11-16: the Greek, and the option whose price is its value. Theta is for a year.
HAUG_GREEKS = (
    ("delta", European("call", 100.0, 105.0, 0.1, 0.1, 0.5, 0.36, 0.5946)),
    ("delta", European("put", 100.0, 105.0, 0.1, 0.1, 0.5, 0.36, -0.3566)),
    ("gamma", European("call", 60.0, 55.0, 0.0, 0.1, 0.75, 0.3, 0.0278)),
    ("gamma", European("put", 60.0, 55.0, 0.0, 0.1, 0.75, 0.3, 0.0278)),
    ("vega", European("call", 60.0, 55.0, 0.0, 0.1, 0.75, 0.3, 18.9358)),
    ("vega", European("put", 60.0, 55.0, 0.0, 0.1, 0.75, 0.3, 18.9358)),
    ("theta", European("put", 405.0, 430.0, 0.05, 0.07, 1 / 12, 0.2, -31.1924)),
    ("rho", European("call", 75.0, 72.0, 0.0, 0.09, 1.0, 0.19, 38.7325)),
)


class Barrier(NamedTuple):
    kind: str
    option: str
    level: float
    rebate: float
    strike: float
    spot: float
    q: float
    r: float
    maturity: float
    volatility: float
    price: float


# Haug (1998), p. 72: watched at all times; the rebate is paid when knocked out, or at expiry when never knocked in.
HAUG_BARRIER = (
    Barrier("down_out", "call", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 9.0246),
    Barrier("down_out", "call", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 6.7924),
    Barrier("down_out", "call", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 4.8759),
    Barrier("down_out", "call", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.0),
    Barrier("down_out", "call", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.0),
    Barrier("down_out", "call", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.0),
    Barrier("up_out", "call", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.6789),
    Barrier("up_out", "call", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.358),
    Barrier("up_out", "call", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.3453),
    Barrier("down_in", "call", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 7.7627),
    Barrier("down_in", "call", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 4.0109),
    Barrier("down_in", "call", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.0576),
    Barrier("down_in", "call", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 13.8333),
    Barrier("down_in", "call", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 7.8494),
    Barrier("down_in", "call", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.9795),
    Barrier("up_in", "call", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 14.1112),
    Barrier("up_in", "call", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 8.4482),
    Barrier("up_in", "call", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 4.591),
    Barrier("down_out", "call", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 8.8334),
    Barrier("down_out", "call", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 7.0285),
    Barrier("down_out", "call", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 5.4137),
    Barrier("down_out", "call", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.0),
    Barrier("down_out", "call", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.0),
    Barrier("down_out", "call", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.0),
    Barrier("up_out", "call", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.6341),
    Barrier("up_out", "call", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.4389),
    Barrier("up_out", "call", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.4315),
    Barrier("down_in", "call", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 9.0093),
    Barrier("down_in", "call", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 5.137),
    Barrier("down_in", "call", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.8517),
    Barrier("down_in", "call", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 14.8816),
    Barrier("down_in", "call", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 9.2045),
    Barrier("down_in", "call", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 5.3043),
    Barrier("up_in", "call", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 15.2098),
    Barrier("up_in", "call", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 9.7278),
    Barrier("up_in", "call", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 5.835),
    Barrier("down_out", "put", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.2798),
    Barrier("down_out", "put", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.2947),
    Barrier("down_out", "put", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.6252),
    Barrier("down_out", "put", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.0),
    Barrier("down_out", "put", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.0),
    Barrier("down_out", "put", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.0),
    Barrier("up_out", "put", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.776),
    Barrier("up_out", "put", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 5.4932),
    Barrier("up_out", "put", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 7.5187),
    Barrier("down_in", "put", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.9586),
    Barrier("down_in", "put", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 6.5677),
    Barrier("down_in", "put", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 11.9752),
    Barrier("down_in", "put", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 2.2845),
    Barrier("down_in", "put", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 5.9085),
    Barrier("down_in", "put", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 11.6465),
    Barrier("up_in", "put", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.25, 1.4653),
    Barrier("up_in", "put", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.25, 3.3721),
    Barrier("up_in", "put", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.25, 7.0846),
    Barrier("down_out", "put", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.417),
    Barrier("down_out", "put", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.4258),
    Barrier("down_out", "put", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.6246),
    Barrier("down_out", "put", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.0),
    Barrier("down_out", "put", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.0),
    Barrier("down_out", "put", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.0),
    Barrier("up_out", "put", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 4.2293),
    Barrier("up_out", "put", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 5.8032),
    Barrier("up_out", "put", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 7.5649),
    Barrier("down_in", "put", 95.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.8769),
    Barrier("down_in", "put", 95.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 7.7989),
    Barrier("down_in", "put", 95.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 13.3078),
    Barrier("down_in", "put", 100.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 3.3328),
    Barrier("down_in", "put", 100.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 7.2636),
    Barrier("down_in", "put", 100.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 12.9713),
    Barrier("up_in", "put", 105.0, 3.0, 90.0, 100.0, 0.04, 0.08, 0.5, 0.3, 2.0658),
    Barrier("up_in", "put", 105.0, 3.0, 100.0, 100.0, 0.04, 0.08, 0.5, 0.3, 4.4226),
    Barrier("up_in", "put", 105.0, 3.0, 110.0, 100.0, 0.04, 0.08, 0.5, 0.3, 8.3686),
)

# El Babsiri and Noel, Simulating path-dependent options: a new approach, Journal of Derivatives (winter 1998).
BABSIRI_NOEL_BARRIER = (
    Barrier("down_in", "call", 90.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.1, 0.07187),
    Barrier("down_in", "call", 90.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.15, 0.60638),
    Barrier("down_in", "call", 90.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.2, 1.64005),
    Barrier("down_in", "call", 90.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.25, 2.98495),
    Barrier("down_in", "call", 90.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.3, 4.50952),
    Barrier("up_in", "call", 110.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.1, 4.79148),
    Barrier("up_in", "call", 110.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.15, 7.08268),
    Barrier("up_in", "call", 110.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.2, 9.11008),
    Barrier("up_in", "call", 110.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.25, 11.06148),
    Barrier("up_in", "call", 110.0, 0.0, 100.0, 100.0, 0.02, 0.05, 1.0, 0.3, 12.98351),
)


class Lookback(NamedTuple):
    strike_kind: str
    option: str
    strike: float | None
    extreme: float  # the greatest or least price until today
    spot: float
    q: float
    r: float
    maturity: float
    volatility: float
    price: float


# Watched at all times: floating strikes of Haug (1998), pp. 61-62, and of Broadie, Glasserman and Kou, Connecting
# discrete and continuous path-dependent options, Finance and Stochastics 3 (1999), pp. 70-74; fixed of Haug, p. 64.
LOOKBACKS = (
    Lookback("floating", "call", None, 100.0, 120.0, 0.06, 0.1, 0.5, 0.3, 25.3533),
    Lookback("floating", "call", None, 100.0, 100.0, 0.0, 0.05, 1.0, 0.3, 23.7884),
    Lookback("floating", "call", None, 100.0, 100.0, 0.0, 0.05, 0.2, 0.3, 10.719),
    Lookback("floating", "call", None, 100.0, 110.0, 0.0, 0.05, 0.2, 0.3, 14.4597),
    Lookback("floating", "put", None, 100.0, 100.0, 0.0, 0.1, 0.5, 0.3, 15.3526),
    Lookback("floating", "put", None, 110.0, 100.0, 0.0, 0.1, 0.5, 0.3, 16.8468),
    Lookback("floating", "put", None, 120.0, 100.0, 0.0, 0.1, 0.5, 0.3, 21.0645),
    Lookback("fixed", "call", 95.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.1, 13.2687),
    Lookback("fixed", "call", 95.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.2, 18.9263),
    Lookback("fixed", "call", 95.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.3, 24.9857),
    Lookback("fixed", "call", 100.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.1, 8.5126),
    Lookback("fixed", "call", 100.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.2, 14.1702),
    Lookback("fixed", "call", 100.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.3, 20.2296),
    Lookback("fixed", "call", 105.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.1, 4.3908),
    Lookback("fixed", "call", 105.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.2, 9.8905),
    Lookback("fixed", "call", 105.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.3, 15.8512),
    Lookback("fixed", "call", 95.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.1, 18.3241),
    Lookback("fixed", "call", 95.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.2, 26.0731),
    Lookback("fixed", "call", 95.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.3, 34.7116),
    Lookback("fixed", "call", 100.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.1, 13.8),
    Lookback("fixed", "call", 100.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.2, 21.5489),
    Lookback("fixed", "call", 100.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.3, 30.1874),
    Lookback("fixed", "call", 105.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.1, 9.5445),
    Lookback("fixed", "call", 105.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.2, 17.2965),
    Lookback("fixed", "call", 105.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.3, 25.9002),
    Lookback("fixed", "put", 95.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.1, 0.6899),
    Lookback("fixed", "put", 95.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.2, 4.4448),
    Lookback("fixed", "put", 95.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.3, 8.9213),
    Lookback("fixed", "put", 100.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.1, 3.3917),
    Lookback("fixed", "put", 100.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.2, 8.3177),
    Lookback("fixed", "put", 100.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.3, 13.1579),
    Lookback("fixed", "put", 105.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.1, 8.1478),
    Lookback("fixed", "put", 105.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.2, 13.0739),
    Lookback("fixed", "put", 105.0, 100.0, 100.0, 0.0, 0.1, 0.5, 0.3, 17.914),
    Lookback("fixed", "put", 95.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.1, 1.0534),
    Lookback("fixed", "put", 95.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.2, 6.2813),
    Lookback("fixed", "put", 95.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.3, 12.2376),
    Lookback("fixed", "put", 100.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.1, 3.8079),
    Lookback("fixed", "put", 100.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.2, 10.1294),
    Lookback("fixed", "put", 100.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.3, 16.3889),
    Lookback("fixed", "put", 105.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.1, 8.3321),
    Lookback("fixed", "put", 105.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.2, 14.6536),
    Lookback("fixed", "put", 105.0, 100.0, 100.0, 0.0, 0.1, 1.0, 0.3, 20.913),
)


# Haug (1998), pp. 88-90: what is paid in cash, or None for the asset; below the strike.
HAUG_DIGITAL = (
    (10.0, European("put", 80.0, 100.0, 0.06, 0.06, 0.75, 0.35, 2.671)),
    (None, European("put", 65.0, 70.0, 0.05, 0.07, 0.5, 0.27, 20.2069)),
)


class Asian(NamedTuple):
    option: str
    strike: float
    spot: float
    q: float
    r: float
    maturity: float
    volatility: float
    fixings: int
    price: float


# Clewlow and Strickland, Implementing Derivatives Models (1998), pp. 118-123: geometric, fixings at maturity * i / n.
CLEWLOW_STRICKLAND_GEOMETRIC = Asian("call", 100.0, 100.0, 0.03, 0.06, 1.0, 0.2, 10, 5.3425606635)

# Haug (1998), pp. 96-97: geometric, averaged at all times.
HAUG_GEOMETRIC_CONTINUOUS = Asian("put", 85.0, 80.0, -0.03, 0.05, 0.25, 0.2, 0, 4.6922)

# Levy, Asian options, in Clewlow and Strickland (eds.), Exotic Options: The State of the Art (1997): arithmetic, the
# spot at time 0 is the first of the fixings and expiry the last.
LEVY_ARITHMETIC = (
    Asian("put", 87.0, 90.0, 0.06, 0.025, 0.9166666666666666, 0.13, 2, 1.3942835683),
    Asian("put", 87.0, 90.0, 0.06, 0.025, 0.9166666666666666, 0.13, 4, 1.5852442983),
    Asian("put", 87.0, 90.0, 0.06, 0.025, 0.9166666666666666, 0.13, 8, 1.66970673),
    Asian("put", 87.0, 90.0, 0.06, 0.025, 0.9166666666666666, 0.13, 12, 1.6980019214),
    Asian("put", 87.0, 90.0, 0.06, 0.025, 0.9166666666666666, 0.13, 26, 1.7255070456),
    Asian("put", 87.0, 90.0, 0.06, 0.025, 0.9166666666666666, 0.13, 52, 1.7401553533),
    Asian("put", 87.0, 90.0, 0.06, 0.025, 0.9166666666666666, 0.13, 100, 1.7478303712),
)

# Haug, 2nd edition (2007), table 4-28, p. 201: arithmetic, Turnbull and Wakeman's approximation, 26 weekly fixings;
# the cost of carry is 0, so q = r.
HAUG_TURNBULL_WAKEMAN = (
    Asian("call", 80.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 19.5152),
    Asian("put", 80.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 0.009),
    Asian("call", 90.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 10.1437),
    Asian("put", 90.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 0.3906),
    Asian("call", 100.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 3.27),
    Asian("put", 100.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 3.27),
    Asian("call", 110.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 0.5515),
    Asian("put", 110.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 10.3046),
    Asian("call", 120.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 0.0479),
    Asian("put", 120.0, 100.0, 0.05, 0.05, 0.5, 0.2, 26, 19.5541),
)

# QuantLib 1.44, QdFpAmericanEngine with its high-precision scheme: American options, good to 1e-7.
QUANTLIB_AMERICAN = (
    European("put", 125.0, 101.9, 0.005, 0.01, 0.4, 0.1, 23.1),
    European("call", 100.0, 98.3, 0.12, 0.06, 0.07, 0.09, 0.24563564),
    European("put", 125.0, 90.4, 0.05, 0.03, 0.89, 0.14, 35.267048028),
    European("call", 80.0, 100.2, 0.12, 0.1, 0.06, 0.48, 20.228198799),
    European("put", 125.0, 95.2, 0.005, 0.01, 0.07, 0.22, 29.8),
    European("call", 100.0, 89.6, 0.05, 0.0, 0.09, 0.37, 0.827959563),
    European("put", 100.0, 99.7, 0.005, 0.01, 3.1, 0.09, 5.73408247),
    European("call", 80.0, 114.9, 0.05, 0.1, 0.16, 0.31, 35.259044342),
    European("put", 100.0, 104.6, 0.005, 0.06, 0.11, 0.41, 3.333632379),
    European("call", 80.0, 95.0, 0.0, 0.01, 0.13, 0.48, 16.356007833),
    European("put", 100.0, 95.3, 0.005, 0.06, 1.15, 0.09, 4.804313446),
    European("call", 125.0, 107.0, 0.0, 0.0, 0.37, 0.15, 0.190903689),
    European("put", 125.0, 92.0, 0.05, 0.01, 0.66, 0.09, 35.16417314),
    European("call", 125.0, 109.1, 0.005, 0.0, 0.54, 0.17, 0.979616757),
    European("put", 80.0, 82.9, 0.05, 0.03, 0.29, 0.73, 11.383783094),
    European("call", 100.0, 97.3, 0.005, 0.03, 0.29, 0.44, 8.301769489),
    European("put", 100.0, 104.9, 0.02, 0.01, 1.93, 0.17, 8.001954101),
    European("call", 80.0, 52.0, 0.12, 0.01, 2.5, 0.26, 0.502506682),
    European("put", 100.0, 112.5, 0.0, 0.06, 0.7, 0.41, 7.604350151),
    European("call", 80.0, 98.4, 0.005, 0.03, 0.52, 0.1, 19.384827977),
)
