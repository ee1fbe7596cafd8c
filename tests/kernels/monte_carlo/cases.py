"""Options whose price must not depend on where it is computed: every kind of kernel, odd path counts, high seeds."""

from tests.kernels.parity import Case

_MARKET = {"spot": 100.0, "strike": 101.0, "rate": 0.05, "dividend": 0.02, "volatility": 0.3, "maturity": 0.75}
_UP = {"barrier": 120.0, "rebate": 2.0}
_DOWN = {"barrier": 90.0, "rebate": 2.0}


def _case(name: str, seed: int, small: bool = True, **params: object) -> Case:
    given = {"option": "call", **_MARKET, **params}
    return Case("monte_carlo", given, seed=seed, name=f"monte_carlo-{name}", small=small)


CASES: tuple[Case, ...] = (
    _case("european-one-step", 0, payoff="european", steps=1, paths=1023),
    _case("european-two-paths", 1, payoff="european", steps=5, paths=2),
    _case("european-put-last-seed", (1 << 64) - 1, payoff="european", option="put", steps=3, paths=1025),
    _case("european-no-volatility", 7, payoff="european", steps=4, paths=257, volatility=0.0),
    _case("european-paths-without-quantiles", 8, payoff="european", steps=4, paths=256, quantiles=()),
    _case("asian-arithmetic", 1 << 63, payoff="asian_arithmetic", steps=13, paths=1000),
    _case("asian-arithmetic-put", 2, payoff="asian_arithmetic", option="put", steps=6, paths=31, include_spot=True),
    _case("asian-arithmetic-plain", 3, payoff="asian_arithmetic", steps=4, paths=513, control_variate=False),
    _case("asian-arithmetic-none-pays", 11, payoff="asian_arithmetic", steps=4, paths=300, strike=3000.0),
    _case("asian-geometric", (1 << 63) + 3, payoff="asian_geometric", steps=10, paths=700, include_spot=True),
    _case("up-out-on-dates", 4, payoff="barrier_up_out", steps=9, paths=600, monitoring="discrete", **_UP),
    _case("down-in-on-dates", 5, payoff="barrier_down_in", steps=8, paths=255, monitoring="discrete", **_DOWN),
    _case("up-in", 6, payoff="barrier_up_in", option="put", steps=7, paths=400, **_UP),
    _case("down-out", 0xDEADBEEF_00000000, payoff="barrier_down_out", steps=11, paths=777, **_DOWN),
    _case("down-out-knocked-at-start", 9, payoff="barrier_down_out", steps=2, paths=33, barrier=100.0, rebate=3.0),
    _case("up-out-no-volatility", 10, payoff="barrier_up_out", steps=4, paths=32, **_UP, volatility=0.0),
    _case("cash-or-nothing", 12, payoff="cash_or_nothing", steps=3, paths=300, payout=7.0),
    _case("asset-or-nothing-put", 13, payoff="asset_or_nothing", option="put", steps=2, paths=300),
    _case("lookback-on-dates", 14, payoff="lookback_fixed", steps=9, paths=300, monitoring="discrete"),
    _case("lookback-fixed-put", 15, payoff="lookback_fixed", option="put", steps=6, paths=400, extreme=95.0),
    _case("lookback-floating", 16, payoff="lookback_floating", strike=None, steps=7, paths=600),
    _case("lookback-no-volatility", 17, payoff="lookback_floating", strike=None, steps=4, paths=32, volatility=0.0),
    _case("antithetic-lookback", 18, payoff="lookback_fixed", steps=6, paths=402, sampling="antithetic"),
    _case("antithetic-asian", 19, payoff="asian_arithmetic", steps=5, paths=514, sampling="antithetic"),
    _case("sobol-asian", 20, small=False, payoff="asian_arithmetic", steps=70, paths=4096, sampling="sobol"),
    _case("sobol-lookback", 1 << 63, payoff="lookback_floating", strike=None, steps=3, paths=4096, sampling="sobol"),
    _case("greeks-european", 21, payoff="european", steps=3, paths=300, greeks=True),
    _case("greeks-asian", 22, payoff="asian_arithmetic", steps=6, paths=300, greeks=True, sampling="antithetic"),
    _case("greeks-geometric", 23, payoff="asian_geometric", steps=5, paths=300, greeks=True, include_spot=True),
    _case(
        "greeks-lookback-on-dates",
        24,
        payoff="lookback_fixed",
        option="put",
        steps=5,
        paths=300,
        greeks=True,
        monitoring="discrete",
    ),
    _case(
        "greeks-lookback",
        25,
        small=False,
        payoff="lookback_floating",
        strike=None,
        steps=5,
        paths=4096,
        greeks=True,
        sampling="sobol",
    ),
    # Of few seeds does a sum end in another bit where two additions of a block's tree change places: of these it does.
    _case("asian-arithmetic-order-of-additions", 18, payoff="asian_arithmetic", steps=2, paths=2048),
    _case("down-out-order-of-additions", 12, payoff="barrier_down_out", steps=3, paths=2048, **_DOWN),
)
