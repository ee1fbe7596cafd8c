"""Published prices of options on baskets and of American options by least squares, each group with its source.

Rates are continuous, times in years; dividends are yields.
"""

from typing import NamedTuple


class TwoAssets(NamedTuple):
    payoff: str
    option: str
    strike: float
    spot: tuple[float, float]
    dividend: tuple[float, float]
    maturity: float
    volatility: tuple[float, float]
    correlation: float
    price: float


# Haug, The Complete Guide to Option Pricing Formulas (1998), pp. 56-58, and a spreadsheet by Firth (Oxford), as
# QuantLib's basketoption.cpp (testEuroTwoValues) has them: Stulz's formula, rate 5 %, good to 1e-3.
STULZ = (
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.9, 10.898),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.7, 8.483),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.5, 6.844),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 5.531),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.1, 4.413),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.5, 0.7), 0.0, 4.981),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.5, 0.3), 0.0, 4.159),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.5, 0.1), 0.0, 2.597),
    TwoAssets("worst_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.5, 0.1), 0.5, 4.03),
    TwoAssets("best_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.9, 17.565),
    TwoAssets("best_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.7, 19.98),
    TwoAssets("best_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.5, 21.619),
    TwoAssets("best_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 22.932),
    TwoAssets("best_of", "call", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.1, 24.049),
    TwoAssets("best_of", "call", 100.0, (80.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 16.508),
    TwoAssets("best_of", "call", 100.0, (80.0, 80.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 8.049),
    TwoAssets("best_of", "call", 100.0, (80.0, 120.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 30.141),
    TwoAssets("best_of", "call", 100.0, (120.0, 120.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 42.889),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.9, 11.369),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.7, 12.856),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.5, 13.89),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 14.741),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.1, 15.485),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 0.5, (0.3, 0.3), 0.1, 11.893),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 0.25, (0.3, 0.3), 0.1, 8.881),
    TwoAssets("worst_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 2.0, (0.3, 0.3), 0.1, 19.268),
    TwoAssets("best_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.9, 7.339),
    TwoAssets("best_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.7, 5.853),
    TwoAssets("best_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.5, 4.818),
    TwoAssets("best_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.3, 3.967),
    TwoAssets("best_of", "put", 100.0, (100.0, 100.0), (0.0, 0.0), 1.0, (0.3, 0.3), 0.1, 3.223),
    TwoAssets("worst_of", "call", 98.0, (100.0, 105.0), (0.0, 0.0), 0.5, (0.11, 0.16), 0.63, 4.8177),
    TwoAssets("best_of", "call", 98.0, (100.0, 105.0), (0.0, 0.0), 0.5, (0.11, 0.16), 0.63, 11.6323),
    TwoAssets("worst_of", "put", 98.0, (100.0, 105.0), (0.0, 0.0), 0.5, (0.11, 0.16), 0.63, 2.0376),
    TwoAssets("best_of", "put", 98.0, (100.0, 105.0), (0.0, 0.0), 0.5, (0.11, 0.16), 0.63, 0.5731),
    TwoAssets("worst_of", "call", 98.0, (100.0, 105.0), (0.06, 0.09), 0.5, (0.11, 0.16), 0.63, 2.934),
    TwoAssets("worst_of", "put", 98.0, (100.0, 105.0), (0.06, 0.09), 0.5, (0.11, 0.16), 0.63, 3.5224),
    TwoAssets("best_of", "call", 98.0, (100.0, 105.0), (0.06, 0.09), 0.5, (0.11, 0.16), 0.63, 8.0701),
    TwoAssets("best_of", "put", 98.0, (100.0, 105.0), (0.06, 0.09), 0.5, (0.11, 0.16), 0.63, 1.2181),
)

# Longstaff and Schwartz, Review of Financial Studies 14 (2001), table 1: American puts with strike 40, rate 6 %, 50
# dates of exercise a year. Spot, volatility, years; the price by finite differences, and that by least squares, whose
# standard error is 0.007 to 0.024.
LONGSTAFF_SCHWARTZ = (
    (36.0, 0.2, 1, 4.478, 4.472),
    (36.0, 0.2, 2, 4.84, 4.821),
    (36.0, 0.4, 1, 7.101, 7.091),
    (36.0, 0.4, 2, 8.508, 8.488),
    (38.0, 0.2, 1, 3.25, 3.244),
    (38.0, 0.2, 2, 3.745, 3.735),
    (38.0, 0.4, 1, 6.148, 6.139),
    (38.0, 0.4, 2, 7.67, 7.669),
    (40.0, 0.2, 1, 2.314, 2.313),
    (40.0, 0.2, 2, 2.885, 2.879),
    (40.0, 0.4, 1, 5.312, 5.308),
    (40.0, 0.4, 2, 6.92, 6.921),
    (42.0, 0.2, 1, 1.617, 1.617),
    (42.0, 0.2, 2, 2.212, 2.206),
    (42.0, 0.4, 1, 4.582, 4.588),
    (42.0, 0.4, 2, 6.248, 6.243),
    (44.0, 0.2, 1, 1.11, 1.118),
    (44.0, 0.2, 2, 1.69, 1.675),
    (44.0, 0.4, 1, 3.948, 3.957),
    (44.0, 0.4, 2, 5.647, 5.622),
)

# Its section 1: eight paths of a price, a put with strike 1.1, rate 6 % a date, exercise on dates 1 to 3, regression on
# 1, x, x^2. The price with early exercise, the one without, and the coefficients of dates 1 and 2.
EIGHT_PATHS = (
    (1.0, 1.09, 1.08, 1.34),
    (1.0, 1.16, 1.26, 1.54),
    (1.0, 1.22, 1.07, 1.03),
    (1.0, 0.93, 0.97, 0.92),
    (1.0, 1.11, 1.56, 1.52),
    (1.0, 0.76, 0.77, 0.9),
    (1.0, 0.92, 0.84, 1.01),
    (1.0, 0.88, 1.22, 1.34),
)
EIGHT_PATHS_AMERICAN, EIGHT_PATHS_EUROPEAN = 0.1144, 0.0564
EIGHT_PATHS_COEFFICIENTS = {1: (2.038, -3.335, 1.356), 2: (-1.07, 2.983, -1.813)}

# QuantLib's mclongstaffschwartzengine.cpp (testAmericanOption), by a tree: American puts at spot 36, rate 6 %, one
# year. Strike, volatility, and the probability of exercise, to 0.015.
EXERCISED = (
    (36.0, 0.2, 0.48013),
    (36.0, 0.3, 0.51678),
    (36.0, 0.4, 0.54598),
    (40.0, 0.2, 0.75549),
    (40.0, 0.3, 0.67569),
    (40.0, 0.4, 0.65562),
)

# American calls on the best of assets without correlation: strike 100, rate 5 %, dividends 10 %, volatility 20 %, three
# years, nine dates. Assets, spot, price. Glasserman, Monte Carlo Methods in Financial Engineering (2004), p. 462.
BEST_OF_CALLS = (
    (2, 90.0, 8.08),
    (2, 100.0, 13.90),
    (2, 110.0, 21.34),
)
