"""Send one job of each kind of operation to a service of its own, over HTTP, on real market prices: `make demo`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples import prices
from examples.serving import PATIENCE, serving
from warpdesk import Client, Result, ta
from warpdesk.secagg.masking import Quantisation, mask, new_secret, pair_seed

YEAR = 252  # trading days

Array = NDArray[Any]


@dataclass(frozen=True)
class Work:
    """One job: the operation, its input in words, what to send, and how to say the answer in short."""

    operation: str
    subject: str
    fields: dict[str, Any]
    answer: Callable[[Result], str]


def main(home: Path | None = None, picture: Path = Path("demo.png")) -> dict[str, Result]:
    """Run a service in `home` for the jobs, print a table, save a picture, stop the service; returns the answers."""
    with serving(home, "demo.log") as url, Client(url, timeout=120) as client:
        _print_row("operation", "input", "answer", "backend", "queue", "compute")
        results = {}
        for work in jobs():
            result = client.run(work.operation, timeout=PATIENCE, **work.fields)
            results[work.operation] = result
            how = result.provenance
            _print_row(
                work.operation,
                work.subject,
                work.answer(result),
                how.backend,
                _milliseconds(how.queue_seconds),
                # A private operation does not say: how long its sampler took would tell of its noise.
                _milliseconds(how.compute_seconds),
            )
    device = results["rsi"].provenance.device
    why = next((found.provenance.fallback_reason for found in results.values()), None)
    print(f"\ncomputed on {device}" + (f" ({why})" if why else ""))
    draw(prices.sp500(), results["bollinger"], results["rsi"], picture)
    print(f"the last two years with Bollinger bands and RSI are in {picture}")
    return results


def jobs() -> list[Work]:
    """One job of each operation, and of the declared indicators one, on the S&P 500 and on twenty stocks."""
    index = prices.sp500()
    _, symbols, closes = prices.stocks()
    close, last = index.close, index.close[-1]
    days = f"S&P 500, {len(close):,} closes"
    moves = np.diff(np.log(close))
    realised = float(np.std(moves[-YEAR:], ddof=1) * np.sqrt(YEAR))
    returns = np.diff(np.log(closes), axis=1)
    centred = returns - returns.mean(axis=1, keepdims=True)

    return [
        Work(
            "matmul",
            f"returns of {len(symbols)} stocks, {centred.shape[1]:,} days",
            {"a": centred, "b": np.ascontiguousarray(centred.T)},
            lambda result: _most_alike(result["product"], symbols),
        ),
        Work(
            "sma",
            days,
            {"close": close, "period": 200},
            lambda result: f"mean of 200 days {result['sma'][-1]:,.2f}, close {last:,.2f}",
        ),
        Work(
            "ema",
            f"{len(symbols)} stocks, {closes.shape[1]:,} closes each",
            {"close": closes, "period": 26},
            lambda result: f"{symbols[0]} {result['ema'][0, -1]:,.2f}, {symbols[-1]} {result['ema'][-1, -1]:,.2f}",
        ),
        Work(
            "bollinger",
            days,
            {"close": close, "period": 20, "width": 2.0},
            lambda result: f"{result['lower'][-1]:,.2f} to {result['upper'][-1]:,.2f}, {_inside(close, result)}",
        ),
        Work(
            "rsi",
            days,
            {"close": close, "period": 14},
            lambda result: f"RSI {result['rsi'][-1]:.2f} on {index.dates[-1]}",
        ),
        Work(
            "macd",
            days,
            {"close": close},
            lambda result: f"MACD {result['macd'][-1]:+,.2f}, signal {result['signal'][-1]:+,.2f}",
        ),
        Work(
            "expression",
            f"{len(symbols)} stocks, a golden cross",
            {"close": closes, "params": _golden()},
            lambda result: f"{int(np.nansum(result['series'][0]))} crosses of {closes.shape[0]} stocks",
        ),
        Work(
            "bars",
            f"S&P 500, {len(close):,} days as weeks",
            {
                "by": "time",
                "every": 7 * 86_400.0,
                "origin": int(np.datetime64("1970-01-05", "ns").astype(np.int64)),  # a Monday
                **{name: getattr(index, name) for name in ("open", "high", "low", "close", "volume")},
                "time": index.dates.astype("datetime64[ns]").astype(np.int64),
            },
            lambda result: f"{result['close'].size} weeks, the last {result['close'][-1] - result['open'][-1]:+,.2f}",
        ),
        *_across(symbols, returns),
        *_options(float(last), realised),
        *_portfolios(symbols, returns),
        *_backtests(days, index),
        Work(
            "monte_carlo",
            f"Asian call at {last:,.2f}, volatility {realised:.1%}",
            {
                "payoff": "asian_arithmetic",
                "option": "call",
                "spot": float(last),
                "strike": float(last),
                "rate": 0.025,
                "volatility": realised,
                "maturity": 1.0,
                "steps": YEAR,
                "paths": 200_000,
            },
            lambda result: f"price {result['price']:,.3f} ± {result['standard_error']:.3f}",
        ),
        _basket(symbols, returns),
        *_risk(symbols, np.expm1(returns)),
        Work(
            "dp_noise",
            f"{len(moves):,} daily returns, each at most 5 %",
            {
                "values": moves,
                "mechanism": "discrete_laplace",
                "mode": "records",
                "epsilon": "1",
                "clip": {"norm": "linf", "bound": "0.05"},
                "neighbouring": "add_remove",
                "unaccounted": True,
            },
            lambda result: f"noisy sum {float(np.ravel(result['noisy'])[0]):+.3f}",
        ),
        _aggregation(symbols, closes),
        _forecast(symbols, returns),
        *_secrets(symbols, closes),
        *_level(close[-10 * YEAR :], realised),
        *_arithmetic(days, close, moves),
    ]


def _golden() -> dict[str, Any]:
    """The bars at which the mean of 50 days comes to lie above that of 200."""
    return ta.expression(cross=ta.crosses_above(ta.sma(ta.close, 50), ta.sma(ta.close, 200)))


def _across(symbols: tuple[str, ...], returns: Array) -> list[Work]:
    """The stocks beside each other on each day, and what their usual move explains of it."""
    data = f"returns of {len(symbols)} stocks, {returns.shape[1]:,} days"
    usual = np.abs(returns).mean(axis=1)[None]
    return [
        Work(
            "cross_rank",
            data,
            {"values": returns, "percentile": True},
            lambda result: f"{symbols[int(np.argmax(result['rank'][:, -1]))]} rose most on the last day",
        ),
        Work(
            "cross_zscore",
            data,
            {"values": returns},
            lambda result: f"largest distance from the mean {np.nanmax(np.abs(result['zscore'])):.2f} deviations",
        ),
        Work(
            "winsorise",
            data,
            {"values": returns, "lower": 0.1, "upper": 0.9},
            lambda result: f"{int((result['winsorised'] != returns).sum()):,} of {returns.size:,} clipped",
        ),
        Work(
            "neutralise",
            "the same, against their usual moves",
            {"values": returns, "factors": usual},
            lambda result: f"{1 - np.var(result['residual']) / np.var(returns):.0%} of the variance explained",
        ),
    ]


def _portfolios(symbols: tuple[str, ...], returns: Array) -> list[Work]:
    """Risks of the stocks together, and weights by them."""
    data = f"returns of {len(symbols)} stocks, {returns.shape[1]:,} days"
    covariance = 252.0 * np.cov(returns)
    return [
        Work(
            "covariance",
            data,
            {"returns": returns, "method": "ledoit_wolf", "periods_per_year": 252.0},
            lambda result: f"shrunk by {result['shrinkage'][0]:.1%} towards equal correlations",
        ),
        Work(
            "risk_parity",
            data,
            {"covariance": covariance},
            lambda result: f"most of {symbols[int(np.argmax(result['weights']))]}, risk {result['risk'][0]:.1%} a year",
        ),
        Work(
            "frontier",
            data,
            {"means": 252.0 * returns.mean(axis=1), "covariance": covariance, "upper": np.array([0.5])},
            lambda result: f"{len(result['corner_means'])} corners, least risk {result['risk']:.1%} a year",
        ),
        Work(
            "hrp",
            data,
            {"covariance": covariance},
            lambda result: f"most of {symbols[int(np.argmax(result['weights']))]}, risk {result['risk'][0]:.1%} a year",
        ),
    ]


def _options(last: float, volatility: float) -> list[Work]:
    """A chain of options on the index for half a year, and the volatility that a price of 5 % at the money implies."""
    strikes = np.round(last * np.linspace(0.8, 1.2, 41))
    market = {"option": "call", "spot": last, "rate": 0.025, "dividend": 0.015, "maturity": 0.5}
    return [
        Work(
            "black_scholes",
            f"{strikes.size} calls, volatility {volatility:.1%}",
            {**market, "strike": strikes, "volatility": volatility},
            lambda result: f"at the money {result['price'][20]:,.2f}, delta {result['delta'][20]:.3f}",
        ),
        Work(
            "implied_volatility",
            "a call at the money for 5 %",
            {**market, "strike": last, "price": 0.05 * last},
            lambda result: f"volatility {result['volatility'][0]:.1%}",
        ),
        Work(
            "american_option",
            f"{strikes.size} puts that may be exercised early",
            {**market, "option": "put", "strike": strikes, "volatility": volatility},
            lambda result: f"at the money {result['price'][20]:,.2f}, exercised at {result['critical_price'][20]:,.0f}",
        ),
    ]


def _basket(symbols: tuple[str, ...], returns: Array) -> Work:
    """A put on the worst of three stocks, from 100 each, that may be exercised each month of a year."""
    three = returns[:3, -YEAR:]
    return Work(
        "basket_option",
        f"American put on the worst of {', '.join(symbols[:3])}",
        {
            "payoff": "worst_of",
            "option": "put",
            "exercise": "american",
            "strike": 100.0,
            "rate": 0.025,
            "maturity": 1.0,
            "steps": 12,
            "spot": np.full(3, 100.0),
            "volatility": three.std(axis=1, ddof=1) * np.sqrt(YEAR),
            "correlation": np.corrcoef(three),
        },
        lambda result: f"price {result['price']:,.2f} ± {result['standard_error']:.2f}",
    )


def _level(close: Array, realised: float) -> list[Work]:
    """The level of the logarithm of the close, smoothed: a random walk under noise of five times its daily variance.

    Its posterior precision is tridiagonal, and the diagonal of its inverse has the variances.
    """
    step = realised**2 / YEAR
    noise = 5 * step
    beside = np.full(close.size - 1, -1 / step)
    diagonal = np.full(close.size, 1 / noise + 2 / step)
    diagonal[[0, -1]] -= 1 / step
    precision = {"lower": beside, "diagonal": diagonal, "upper": beside}
    days = f"S&P 500, a level of {close.size:,} closes"
    return [
        Work(
            "tridiagonal_solve",
            days,
            {**precision, "rhs": np.log(close) / noise},
            lambda result: f"level {np.exp(result['solution'][-1]):,.2f}, close {close[-1]:,.2f}",
        ),
        Work(
            "tridiagonal_inverse_diagonal",
            days,
            precision,
            lambda result: f"known to {np.sqrt(result['inverse_diagonal'][-1]):.2%} on the last day",
        ),
    ]


def _risk(symbols: tuple[str, ...], returns: Array) -> list[Work]:
    """What an equal share of each stock may lose in a day, whether that held, and what it earned."""
    weights = np.full(len(symbols), 1 / len(symbols))
    held = returns.mean(axis=0)
    half = held.size // 2
    limit = float(-np.quantile(held[:half], 0.01))  # of the first half, for the second
    return [
        Work(
            "value_at_risk",
            f"equal shares of {len(symbols)} stocks, {held.size:,} days",
            {"weights": weights, "returns": np.ascontiguousarray(returns.T), "levels": [0.95, 0.99]},
            lambda result: f"one day of 100 loses over {result['var'][1]:.2%}, then {result['cvar'][1]:.2%} on average",
        ),
        Work(
            "var_backtest",
            "the first half's limit in the second",
            {"returns": held[half:], "var": np.full(held.size - half, limit)},
            lambda result: f"{result['exceptions'][0]} exceptions of {result['expected']:.1f}: {result['zone'][0]}",
        ),
        Work(
            "performance",
            f"equal shares of {len(symbols)} stocks",
            {"returns": held},
            lambda result: f"{result['annual_return'][0]:+.1%} a year, deepest fall {result['max_drawdown'][0]:.0%}",
        ),
    ]


def _backtests(days: str, index: Any) -> list[Work]:
    """A moving-average strategy on the index: many lengths, one of them bar by bar, and how much of it is luck."""
    lines = {name: {"op": "sma", "of": "close", "period": {"param": name}} for name in ("fast", "slow")}
    rules = {
        "strategy": {
            "let": lines,
            "entries": {"op": "crosses_above", "a": "fast", "b": "slow"},
            "exits": {"op": "crosses_below", "a": "fast", "b": "slow"},
        },
        "fee": 0.001,
        "open": index.open,
        "close": index.close,
    }
    returns = np.diff(np.log(index.close[-2_561:])).reshape(1, -1)
    held = [np.sign(np.roll(returns[0], lag)) * returns[0] for lag in range(1, 21)]
    return [
        Work(
            "backtest_sweep",
            f"{days}, 400 pairs of averages",
            {**rules, "grid": {"fast": [5 * k for k in range(1, 21)], "slow": [120 + 10 * k for k in range(20)]}},
            lambda result: f"best Sharpe ratio {np.nanmax(result['metrics'][3]):.2f} of {result['sets'].shape[1]} sets",
        ),
        Work(
            "backtest",
            f"{days}, averages of 50 and 200",
            {**rules, "values": {"fast": 50, "slow": 200}},
            lambda result: f"{len(result['trades'])} trades, total return {result['metrics'][0]:.0%}",
        ),
        Work(
            "overfitting",
            "20 rules that go by one day's move",
            {"returns": np.array(held)},
            lambda result: f"PBO {result['pbo']:.0%}, deflated Sharpe {result['deflated_sharpe']:.0%}",
        ),
    ]


def _arithmetic(days: str, close: Array, moves: Array) -> list[Work]:
    """Vector operations: what one share of the index did, and how large its days were."""
    today, tomorrow = np.ascontiguousarray(close[:-1]), np.ascontiguousarray(close[1:])
    return [
        Work(
            "add",
            days,
            {"x": today, "y": tomorrow},
            lambda result: f"last two days together {result['add'][-1]:,.2f}",
        ),
        Work(
            "multiply",
            f"{len(moves):,} daily returns and closes",
            {"x": moves, "y": today},
            lambda result: f"points of the last day {result['multiply'][-1]:+,.2f}",
        ),
        Work(
            "axpy",
            days,
            {"x": today, "y": tomorrow, "alpha": -1.0},
            lambda result: f"largest fall {result['axpy'].min():,.2f} points",
        ),
        Work(
            "dot",
            f"{len(moves):,} daily returns with themselves",
            {"x": moves, "y": moves},
            lambda result: f"root of the mean square {np.sqrt(result['dot'][0] / len(moves)):.3%}",
        ),
        Work(
            "sum",
            f"{len(moves):,} daily returns",
            {"x": moves},
            lambda result: f"{result['sum'][0]:+.4f}, a factor of {np.exp(result['sum'][0]):,.1f}",
        ),
        Work(
            "norm",
            f"{len(moves):,} daily returns",
            {"x": moves, "order": "l2"},
            lambda result: f"Euclidean norm {result['norm'][0]:.4f}",
        ),
        Work("min", days, {"x": close}, lambda result: f"lowest close {result['min'][0]:,.2f}"),
        Work("max", days, {"x": close}, lambda result: f"highest close {result['max'][0]:,.2f}"),
    ]


def _aggregation(symbols: tuple[str, ...], closes: Array) -> Work:
    """Five desks learn their joint position, nobody a single desk's; desk 5 drops out after keys were exchanged."""
    quantisation = Quantisation(clip="1000000", scale="1")  # whole shares
    desks = {desk: position(closes, months=3 * desk) for desk in range(1, 6)}
    secrets = {desk: new_secret() for desk in desks}
    roster = {desk: secret.public for desk, secret in secrets.items()}
    dropped = 5
    survivors = [desk for desk in desks if desk != dropped]
    masked = [
        mask(desks[desk], desk, secrets[desk], roster, round_id="demo", quantisation=quantisation) for desk in survivors
    ]
    # Each survivor reveals its self seed and the seed it shares with the desk that is gone, nothing else.
    self_seeds = [secrets[desk].self_seed for desk in survivors]
    pair_seeds = [pair_seed(desk, secrets[desk].private, dropped, roster[dropped], "demo") for desk in survivors]
    truth = sum(np.rint(desks[desk]).astype(np.int64) for desk in survivors)

    def answer(result: Result) -> str:
        right = "equals" if np.array_equal(result["sum"], truth) else "DIFFERS FROM"
        return f"{symbols[0]} {result['sum'][0]:+,d} shares, {right} the plain sum"

    return Work(
        "secure_aggregation",
        f"positions of 4 of 5 desks in {len(symbols)} stocks",
        {
            "masked": np.stack(masked),
            "self_seeds": np.array([list(seed) for seed in self_seeds], dtype=np.uint8),
            "pair_seeds": np.array([list(seed) for seed in pair_seeds], dtype=np.uint8),
            "round_id": "demo",
            "modulus_bits": 32,
            "threshold": 3,
            "survivors": survivors,
            "dropped": [dropped],
            "pairs": [[dropped, desk] for desk in survivors],
            "quantisation": quantisation.model_dump(),
            "output": "int",
        },
        answer,
    )


def position(closes: Array, months: int) -> Array:
    """Shares of a desk that buys what rose and sells what fell over some months, 50,000 dollars of each stock."""
    momentum = np.sign(closes[:, -1] - closes[:, -1 - 21 * months])
    position: Array = momentum * 50_000 / closes[:, -1]
    return position


def _forecast(symbols: tuple[str, ...], returns: Array) -> Work:
    """One model of tomorrow's move from today's, averaged from those that each stock's desk fits to its own days."""
    moves = np.abs(returns)
    fits = [np.polyfit(of_stock[:-1], of_stock[1:], 1) for of_stock in moves]
    return Work(
        "federated_average",
        f"{len(symbols)} desks' models of tomorrow's move",
        {"updates": np.array(fits), "weights": np.full(len(symbols), moves.shape[1])},
        lambda result: f"move tomorrow: {result['average'][1]:.2%} + {result['average'][0]:.2f} of today's",
    )


def _secrets(symbols: tuple[str, ...], closes: Array) -> list[Work]:
    """A desk's positions, split among five custodians of whom any three can give them back; one of the four who are
    asked holds a wrong share of the first."""
    shares = np.rint(position(closes, months=3)).astype(np.int64)
    prime = 2**31 - 1
    random = np.random.default_rng()  # fit for an example: the service draws from ChaCha20
    linear, square = random.integers(0, prime, (2, len(shares)))
    held = np.array([(shares + linear * x + square * x * x) % prime for x in (1, 2, 4, 5, 3)])
    held[4, 0] ^= 1

    def answer(result: Result) -> str:
        right = "give" if np.array_equal(result["values"], shares) else "do NOT give"
        return f"custodian {result['corrupted'][0]} is wrong, the others {right} the truth"

    return [
        Work(
            "shamir_share",
            f"a desk's positions in {len(symbols)} stocks, 3 of 5",
            {"values": shares, "field": "m31", "threshold": 3, "shares": 5},
            lambda result: f"five shares of {result['shares'].shape[1]} words",
        ),
        Work(
            "shamir_reconstruct",
            "the same from five custodians, one wrong",
            {
                "shares": held.astype(np.uint32),
                "field": "m31",
                "threshold": 3,
                "x": [1, 2, 4, 5, 3],
                "correct": True,
            },
            answer,
        ),
    ]


def _most_alike(covariance: Array, symbols: tuple[str, ...]) -> str:
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation) - np.eye(len(symbols))
    row, column = np.unravel_index(np.argmax(correlation), correlation.shape)
    return f"most alike: {symbols[row]} and {symbols[column]}, correlation {correlation[row, column]:.2f}"


def _inside(close: Array, bands: Result) -> str:
    defined = ~np.isnan(bands["middle"])
    inside = (bands["lower"] <= close) & (close <= bands["upper"])
    return f"{np.mean(inside[defined]):.1%} of closes inside"


def draw(index: prices.Prices, bands: Result, rsi: Result, path: Path, days: int = 2 * YEAR) -> None:
    """Close with Bollinger bands above, RSI below, the last `days`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = slice(-days, None)
    dates = index.dates[shown].astype("datetime64[D]").astype(object)
    figure, (upper, lower) = plt.subplots(2, sharex=True, figsize=(11, 6.5), height_ratios=(3, 1), layout="constrained")
    upper.fill_between(dates, bands["lower"][shown], bands["upper"][shown], color="tab:blue", alpha=0.15, linewidth=0)
    upper.plot(dates, bands["middle"][shown], color="tab:blue", linewidth=1, label="mean of 20 days, ± 2 deviations")
    upper.plot(dates, index.close[shown], color="black", linewidth=1, label="close")
    upper.set_title("S&P 500 with Bollinger bands and RSI, computed by Warpdesk", loc="left")
    upper.set_ylabel("index points")
    upper.legend(loc="upper left", frameon=False)
    lower.plot(dates, rsi["rsi"][shown], color="tab:purple", linewidth=1)
    for level in (30, 70):
        lower.axhline(level, color="grey", linewidth=0.8, linestyle="--")
    lower.set_ylim(0, 100)
    lower.set_ylabel("RSI (14)")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _print_row(operation: str, subject: str, answer: str, backend: str, queue: str, compute: str) -> None:
    print(f"{operation:<28} {subject:<50} {answer:<54} {backend:<8} {queue:>9} {compute:>9}", flush=True)


def _milliseconds(seconds: float | None) -> str:
    return "not told" if seconds is None else f"{1000 * seconds:.1f} ms"


if __name__ == "__main__":
    main()
