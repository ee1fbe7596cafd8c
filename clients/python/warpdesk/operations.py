"""The client's method for each operation, with types: written by clients/python/write_methods.py."""

# ruff: noqa: A002 (operations have parameters that are called like builtins)

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from warpdesk.arrays import AnyArray
from warpdesk.calls import NanPolicy, Numbers, Result, RunOptions, given, typed


class MatmulResult(Result):
    """The result of `matmul`."""

    product: AnyArray
    algorithm: Any
    algorithm_reason: Any
    precision: Any
    relative_error: Any


class SmaResult(Result):
    """The result of `sma`."""

    sma: AnyArray


class EmaResult(Result):
    """The result of `ema`."""

    ema: AnyArray


class BollingerResult(Result):
    """The result of `bollinger`."""

    upper: AnyArray
    middle: AnyArray
    lower: AnyArray


class RmaResult(Result):
    """The result of `rma`."""

    rma: AnyArray


class WmaResult(Result):
    """The result of `wma`."""

    wma: AnyArray


class TrimaResult(Result):
    """The result of `trima`."""

    trima: AnyArray


class DemaResult(Result):
    """The result of `dema`."""

    dema: AnyArray


class TemaResult(Result):
    """The result of `tema`."""

    tema: AnyArray


class T3Result(Result):
    """The result of `t3`."""

    t3: AnyArray


class HmaResult(Result):
    """The result of `hma`."""

    hma: AnyArray


class ZlmaResult(Result):
    """The result of `zlma`."""

    zlma: AnyArray


class KamaResult(Result):
    """The result of `kama`."""

    kama: AnyArray


class VidyaResult(Result):
    """The result of `vidya`."""

    vidya: AnyArray


class AlmaResult(Result):
    """The result of `alma`."""

    alma: AnyArray


class MidpointResult(Result):
    """The result of `midpoint`."""

    midpoint: AnyArray


class MidpriceResult(Result):
    """The result of `midprice`."""

    midprice: AnyArray


class VwmaResult(Result):
    """The result of `vwma`."""

    vwma: AnyArray


class AveragePriceResult(Result):
    """The result of `average_price`."""

    average_price: AnyArray


class MedianPriceResult(Result):
    """The result of `median_price`."""

    median_price: AnyArray


class TypicalPriceResult(Result):
    """The result of `typical_price`."""

    typical_price: AnyArray


class WeightedCloseResult(Result):
    """The result of `weighted_close`."""

    weighted_close: AnyArray


class DonchianResult(Result):
    """The result of `donchian`."""

    upper: AnyArray
    middle: AnyArray
    lower: AnyArray


class KeltnerResult(Result):
    """The result of `keltner`."""

    upper: AnyArray
    middle: AnyArray
    lower: AnyArray


class AccelerationBandsResult(Result):
    """The result of `acceleration_bands`."""

    upper: AnyArray
    middle: AnyArray
    lower: AnyArray


class IchimokuResult(Result):
    """The result of `ichimoku`."""

    conversion: AnyArray
    base: AnyArray
    span_a: AnyArray
    span_b: AnyArray


class ParabolicSarResult(Result):
    """The result of `parabolic_sar`."""

    parabolic_sar: AnyArray


class ParabolicSarExtendedResult(Result):
    """The result of `parabolic_sar_extended`."""

    parabolic_sar_extended: AnyArray


class SupertrendResult(Result):
    """The result of `supertrend`."""

    supertrend: AnyArray
    trend: AnyArray


class HeikinAshiResult(Result):
    """The result of `heikin_ashi`."""

    open: AnyArray
    high: AnyArray
    low: AnyArray
    close: AnyArray


class RsiResult(Result):
    """The result of `rsi`."""

    rsi: AnyArray


class MacdResult(Result):
    """The result of `macd`."""

    macd: AnyArray
    signal: AnyArray
    histogram: AnyArray


class ApoResult(Result):
    """The result of `apo`."""

    apo: AnyArray


class PpoResult(Result):
    """The result of `ppo`."""

    ppo: AnyArray


class PvoResult(Result):
    """The result of `pvo`."""

    pvo: AnyArray


class MomentumResult(Result):
    """The result of `momentum`."""

    momentum: AnyArray


class RocResult(Result):
    """The result of `roc`."""

    roc: AnyArray


class StochasticResult(Result):
    """The result of `stochastic`."""

    k: AnyArray
    d: AnyArray


class StochasticRsiResult(Result):
    """The result of `stochastic_rsi`."""

    k: AnyArray
    d: AnyArray


class WilliamsRResult(Result):
    """The result of `williams_r`."""

    williams_r: AnyArray


class CciResult(Result):
    """The result of `cci`."""

    cci: AnyArray


class CmoResult(Result):
    """The result of `cmo`."""

    cmo: AnyArray


class TrixResult(Result):
    """The result of `trix`."""

    trix: AnyArray


class TsiResult(Result):
    """The result of `tsi`."""

    tsi: AnyArray


class UltimateOscillatorResult(Result):
    """The result of `ultimate_oscillator`."""

    ultimate_oscillator: AnyArray


class AwesomeOscillatorResult(Result):
    """The result of `awesome_oscillator`."""

    awesome_oscillator: AnyArray


class AccelerationOscillatorResult(Result):
    """The result of `acceleration_oscillator`."""

    acceleration_oscillator: AnyArray


class AroonResult(Result):
    """The result of `aroon`."""

    up: AnyArray
    down: AnyArray
    oscillator: AnyArray


class DirectionalMovementResult(Result):
    """The result of `directional_movement`."""

    plus: AnyArray
    minus: AnyArray


class AdxResult(Result):
    """The result of `adx`."""

    adx: AnyArray
    plus_di: AnyArray
    minus_di: AnyArray
    dx: AnyArray


class AdxrResult(Result):
    """The result of `adxr`."""

    adxr: AnyArray


class VortexResult(Result):
    """The result of `vortex`."""

    plus: AnyArray
    minus: AnyArray


class BalanceOfPowerResult(Result):
    """The result of `balance_of_power`."""

    balance_of_power: AnyArray


class QstickResult(Result):
    """The result of `qstick`."""

    qstick: AnyArray


class ElderRayResult(Result):
    """The result of `elder_ray`."""

    bull: AnyArray
    bear: AnyArray


class EfficiencyRatioResult(Result):
    """The result of `efficiency_ratio`."""

    efficiency_ratio: AnyArray


class CoppockResult(Result):
    """The result of `coppock`."""

    coppock: AnyArray


class VerticalHorizontalFilterResult(Result):
    """The result of `vertical_horizontal_filter`."""

    vertical_horizontal_filter: AnyArray


class DetrendedPriceResult(Result):
    """The result of `detrended_price`."""

    detrended_price: AnyArray


class IntradayMomentumResult(Result):
    """The result of `intraday_momentum`."""

    intraday_momentum: AnyArray


class KdjResult(Result):
    """The result of `kdj`."""

    k: AnyArray
    d: AnyArray
    j: AnyArray


class StochasticMomentumResult(Result):
    """The result of `stochastic_momentum`."""

    smi: AnyArray
    signal: AnyArray


class ForecastOscillatorResult(Result):
    """The result of `forecast_oscillator`."""

    forecast_oscillator: AnyArray


class RelativeVolatilityResult(Result):
    """The result of `relative_volatility`."""

    relative_volatility: AnyArray


class TrueRangeResult(Result):
    """The result of `true_range`."""

    true_range: AnyArray


class AtrResult(Result):
    """The result of `atr`."""

    atr: AnyArray


class NatrResult(Result):
    """The result of `natr`."""

    natr: AnyArray


class AdrResult(Result):
    """The result of `adr`."""

    adr: AnyArray


class ChaikinVolatilityResult(Result):
    """The result of `chaikin_volatility`."""

    chaikin_volatility: AnyArray


class MassIndexResult(Result):
    """The result of `mass_index`."""

    mass_index: AnyArray


class CloseToCloseResult(Result):
    """The result of `close_to_close`."""

    close_to_close: AnyArray


class ParkinsonResult(Result):
    """The result of `parkinson`."""

    parkinson: AnyArray


class GarmanKlassResult(Result):
    """The result of `garman_klass`."""

    garman_klass: AnyArray


class RogersSatchellResult(Result):
    """The result of `rogers_satchell`."""

    rogers_satchell: AnyArray


class YangZhangResult(Result):
    """The result of `yang_zhang`."""

    yang_zhang: AnyArray


class ObvResult(Result):
    """The result of `obv`."""

    obv: AnyArray


class AdResult(Result):
    """The result of `ad`."""

    ad: AnyArray


class AdoscResult(Result):
    """The result of `adosc`."""

    adosc: AnyArray


class CmfResult(Result):
    """The result of `cmf`."""

    cmf: AnyArray


class MfiResult(Result):
    """The result of `mfi`."""

    mfi: AnyArray


class ForceIndexResult(Result):
    """The result of `force_index`."""

    force_index: AnyArray


class MarketFacilitationResult(Result):
    """The result of `market_facilitation`."""

    market_facilitation: AnyArray


class PvtResult(Result):
    """The result of `pvt`."""

    pvt: AnyArray


class RelativeVolumeResult(Result):
    """The result of `relative_volume`."""

    relative_volume: AnyArray


class VwapResult(Result):
    """The result of `vwap`."""

    vwap: AnyArray


class SessionVwapResult(Result):
    """The result of `session_vwap`."""

    session_vwap: AnyArray


class WadResult(Result):
    """The result of `wad`."""

    wad: AnyArray


class NviResult(Result):
    """The result of `nvi`."""

    nvi: AnyArray


class PviResult(Result):
    """The result of `pvi`."""

    pvi: AnyArray


class RollingResult(Result):
    """The result of `rolling`."""

    rolling: AnyArray


class RollingQuantileResult(Result):
    """The result of `rolling_quantile`."""

    rolling_quantile: AnyArray


class PercentRankResult(Result):
    """The result of `percent_rank`."""

    percent_rank: AnyArray


class ExtremesResult(Result):
    """The result of `extremes`."""

    highest: AnyArray
    lowest: AnyArray
    since_highest: AnyArray
    since_lowest: AnyArray


class LinearRegressionResult(Result):
    """The result of `linear_regression`."""

    value: AnyArray
    slope: AnyArray
    intercept: AnyArray
    forecast: AnyArray


class MeanReversionResult(Result):
    """The result of `mean_reversion`."""

    zscore: AnyArray
    position: AnyArray


class CrossoverResult(Result):
    """The result of `crossover`."""

    up: AnyArray
    down: AnyArray


class BreakoutResult(Result):
    """The result of `breakout`."""

    breakout: AnyArray


class SwingPivotsResult(Result):
    """The result of `swing_pivots`."""

    high: AnyArray
    low: AnyArray


class FractalResult(Result):
    """The result of `fractal`."""

    high: AnyArray
    low: AnyArray


class ThresholdResult(Result):
    """The result of `threshold`."""

    state: AnyArray
    up: AnyArray
    down: AnyArray


class RollingPairResult(Result):
    """The result of `rolling_pair`."""

    rolling_pair: AnyArray


class CandlestickResult(Result):
    """The result of `candlestick`."""

    candlestick: AnyArray


class ExpressionResult(Result):
    """The result of `expression`."""

    series: AnyArray
    names: Any
    first: Any


class BarsResult(Result):
    """The result of `bars`."""

    time: AnyArray
    close_time: AnyArray
    open: AnyArray
    high: AnyArray
    low: AnyArray
    close: AnyArray
    volume: AnyArray
    vwap: AnyArray
    count: AnyArray
    complete: AnyArray
    left_out: Any


class CrossRankResult(Result):
    """The result of `cross_rank`."""

    rank: AnyArray


class CrossZscoreResult(Result):
    """The result of `cross_zscore`."""

    zscore: AnyArray


class WinsoriseResult(Result):
    """The result of `winsorise`."""

    winsorised: AnyArray


class NeutraliseResult(Result):
    """The result of `neutralise`."""

    residual: AnyArray
    used: AnyArray


class BlackScholesResult(Result):
    """The result of `black_scholes`."""

    price: AnyArray
    delta: AnyArray
    gamma: AnyArray
    vega: AnyArray
    theta: AnyArray
    rho: AnyArray


class ImpliedVolatilityResult(Result):
    """The result of `implied_volatility`."""

    volatility: AnyArray
    status: AnyArray


class AmericanOptionResult(Result):
    """The result of `american_option`."""

    price: AnyArray
    delta: AnyArray
    gamma: AnyArray
    vega: AnyArray
    theta: AnyArray
    rho: AnyArray
    critical_price: AnyArray
    status: AnyArray
    scheme: Any


class CovarianceResult(Result):
    """The result of `covariance`."""

    covariance: AnyArray
    correlation: AnyArray
    means: AnyArray
    shrinkage: AnyArray
    eigenvalues: AnyArray
    explained_variance: AnyArray
    explained_variance_ratio: AnyArray
    components: AnyArray
    smallest_eigenvalue: AnyArray
    condition_number: AnyArray


class RiskParityResult(Result):
    """The result of `risk_parity`."""

    weights: AnyArray
    risk_contributions: AnyArray
    risk: AnyArray
    iterations: AnyArray
    residual: AnyArray
    smallest_eigenvalue: AnyArray
    condition_number: AnyArray


class FrontierResult(Result):
    """The result of `frontier`."""

    weights: AnyArray
    bounds: AnyArray
    risk_contributions: AnyArray
    mean: Any
    risk: Any
    sharpe: Any
    corner_weights: AnyArray
    corner_means: AnyArray
    corner_risks: AnyArray
    corner_lambdas: AnyArray
    steps: Any
    violation: Any
    ties: Any
    smallest_eigenvalue: Any
    condition_number: Any


class HrpResult(Result):
    """The result of `hrp`."""

    weights: AnyArray
    risk_contributions: AnyArray
    risk: AnyArray
    order: AnyArray
    merges: AnyArray
    smallest_eigenvalue: AnyArray
    condition_number: AnyArray


class BacktestSweepResult(Result):
    """The result of `backtest_sweep`."""

    metrics: AnyArray
    block_sums: AnyArray
    sets: AnyArray
    prefix_differences: AnyArray
    metric_names: Any
    parameter_names: Any
    rules: Any


class BacktestResult(Result):
    """The result of `backtest`."""

    equity: AnyArray
    position: AnyArray
    trades: AnyArray
    metrics: AnyArray
    portfolio_returns: AnyArray
    prefix_differences: AnyArray
    metric_names: Any
    parameter_names: Any
    rules: Any
    trade_fields: Any
    reasons: Any


class OverfittingResult(Result):
    """The result of `overfitting`."""

    best: Any
    sharpe: Any
    probabilistic_sharpe: Any
    deflated_sharpe: Any
    expected_best_sharpe: Any
    trials: Any
    pbo: Any
    splits: Any
    logits: AnyArray
    chosen: AnyArray
    walk_forward: AnyArray
    walk_forward_sharpe: Any


class MonteCarloResult(Result):
    """The result of `monte_carlo`."""

    price: Any
    standard_error: Any
    confidence_interval: Any
    confidence: Any
    quantiles: Any
    quantile_resolution: Any
    control_variate: Any
    knocked_at_start: Any
    greeks: Any
    paths: Any
    sampling: Any
    paying_paths: Any
    deciding_paths: Any
    warnings: Any
    steps: Any


class BasketOptionResult(Result):
    """The result of `basket_option`."""

    price: Any
    standard_error: Any
    confidence_interval: Any
    confidence: Any
    control_variate: Any
    american: Any
    paths: Any
    paying_paths: Any
    deciding_paths: Any
    warnings: Any


class ValueAtRiskResult(Result):
    """The result of `value_at_risk`."""

    var: AnyArray
    cvar: AnyArray
    var_error: AnyArray
    cvar_error: AnyArray
    marginal_var: AnyArray
    component_var: AnyArray
    marginal_cvar: AnyArray
    component_cvar: AnyArray
    levels: Any
    method: Any
    quantile: Any


class VarBacktestResult(Result):
    """The result of `var_backtest`."""

    exceptions: AnyArray
    expected: Any
    kupiec: AnyArray
    kupiec_p: AnyArray
    independence: AnyArray
    independence_p: AnyArray
    conditional: AnyArray
    conditional_p: AnyArray
    transitions: AnyArray
    zone: Any
    cumulative: AnyArray
    unknown: Any


class PerformanceResult(Result):
    """The result of `performance`."""

    total_return: AnyArray
    annual_return: AnyArray
    volatility: AnyArray
    sharpe: AnyArray
    sortino: AnyArray
    calmar: AnyArray
    omega: AnyArray
    skew: AnyArray
    kurtosis: AnyArray
    max_drawdown: AnyArray
    drawdown_depth: AnyArray
    drawdown_start: AnyArray
    drawdown_trough: AnyArray
    drawdown_recovery: AnyArray
    drawdown_length: AnyArray
    tracking_error: AnyArray
    information_ratio: AnyArray
    beta: AnyArray
    alpha: AnyArray
    up_capture: AnyArray
    down_capture: AnyArray
    undefined: Any


class DpNoiseResult(Result):
    """The result of `dp_noise`."""

    noisy: AnyArray
    mechanism: Any
    scale: Any
    grid: Any
    sensitivity: Any
    sensitivity_source: Any
    neighbouring: Any
    spent: Any
    split: Any
    accuracy_95: Any
    statement: Any
    unaccounted: Any


class SecureAggregationResult(Result):
    """The result of `secure_aggregation`."""

    sum: AnyArray
    survivors: Any
    overflow_proof: Any
    round_id: Any
    statement: Any


class FederatedAverageResult(Result):
    """The result of `federated_average`."""

    average: AnyArray
    model: AnyArray
    first_moment: AnyArray
    second_moment: AnyArray
    total_weight: Any
    mechanism: Any
    scale: Any
    grid: Any
    sensitivity: Any
    sensitivity_source: Any
    neighbouring: Any
    spent: Any
    accuracy_95: Any
    server_learned: Any
    statement: Any
    unaccounted: Any


class ShamirShareResult(Result):
    """The result of `shamir_share`."""

    shares: AnyArray
    x: Any
    statement: Any


class ShamirReconstructResult(Result):
    """The result of `shamir_reconstruct`."""

    extra: Any
    corrupted: Any
    inconsistent: Any
    statement: Any


class TridiagonalSolveResult(Result):
    """The result of `tridiagonal_solve`."""

    solution: AnyArray
    log_determinant: AnyArray
    sign: AnyArray
    smallest_pivot: AnyArray
    dominant: AnyArray
    residual: AnyArray
    backward_error: AnyArray
    status: AnyArray
    row: AnyArray


class TridiagonalInverseDiagonalResult(Result):
    """The result of `tridiagonal_inverse_diagonal`."""

    inverse_diagonal: AnyArray
    log_determinant: AnyArray
    sign: AnyArray
    smallest_pivot: AnyArray
    dominant: AnyArray
    error_bound: AnyArray
    status: AnyArray
    row: AnyArray


class AddResult(Result):
    """The result of `add`."""

    add: AnyArray


class MultiplyResult(Result):
    """The result of `multiply`."""

    multiply: AnyArray


class AxpyResult(Result):
    """The result of `axpy`."""

    axpy: AnyArray


class DotResult(Result):
    """The result of `dot`."""

    dot: AnyArray


class SumResult(Result):
    """The result of `sum`."""

    sum: AnyArray


class NormResult(Result):
    """The result of `norm`."""

    norm: AnyArray


class MinResult(Result):
    """The result of `min`."""

    min: AnyArray


class MaxResult(Result):
    """The result of `max`."""

    max: AnyArray


class MonteCarloUntilResult(Result):
    """The result of `monte_carlo_until`."""

    price: Any
    standard_error: Any
    confidence_interval: Any
    confidence: Any
    quantiles: Any
    quantile_resolution: Any
    control_variate: Any
    knocked_at_start: Any
    greeks: Any
    paths: Any
    sampling: Any
    paying_paths: Any
    deciding_paths: Any
    warnings: Any
    steps: Any
    reached: Any


class OptimizeResult(Result):
    """The result of `optimize`."""

    weights: AnyArray
    bounds: AnyArray
    risk_contributions: AnyArray
    mean: Any
    risk: Any
    cvar: Any
    turnover: Any
    tracking_error: Any
    smallest_eigenvalue: Any
    condition_number: Any
    objective: Any
    gap: Any
    primal_residual: Any
    dual_residual: Any
    iterations: Any
    status: Any
    algorithm: Any
    algorithm_reason: Any


class Operations(ABC):
    """A method for each operation: inputs are arrays, frames, lists or uploaded arrays, options those of `run`."""

    @abstractmethod
    def run(self, operation: str, *, params: Mapping[str, Any] | None = None, **fields: Any) -> Result: ...

    def matmul(
        self,
        a: Numbers,
        b: Numbers,
        *,
        algorithm: Literal["kernel", "library"] | None = None,
        precision: Literal["ieee", "tf32", "bf16", "fp16"] = "ieee",
        **options: Unpack[RunOptions],
    ) -> MatmulResult:
        """Matrix product a @ b, single or batched.

        Args:
            a: left factor, shape (m, k) or (batch, m, k)
            b: right factor, shape (k, n) or (batch, k, n), of a's dtype
            algorithm: kernel: our own, which sums in one fixed order, so that every device gives the same bytes.
                library: cuBLAS, or the CPU's BLAS: faster, with last bits that depend on shape and device. null: the
                library, or the kernel where there is no library; the answer says which ran and why.
            precision: ieee: float32 or float64 as given. tf32, bf16, fp16 (float32 only, library only): inputs are
                rounded to that format, products summed in float32, and the error this costs is measured and returned.

        Returns:
            product: a @ b, shape (m, n) or (batch, m, n), of the factors' dtype
            algorithm: what ran: kernel or library
            algorithm_reason: why that one
            precision: the format products were formed in: ieee, tf32, bf16 or fp16
            relative_error: what a reduced precision cost, measured on up to 16 rows: |product - exact| / |exact| in the
                Frobenius norm, exact being the float64 product of the factors as given; null for ieee, and where exact
                is 0 or the product overflows
        """
        fields = given(a=a, b=b, algorithm=algorithm, precision=precision)
        return typed(MatmulResult, self.run("matmul", params=fields, **options))

    def sma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> SmaResult:
        """Simple moving average: the mean of the last `period` prices.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            sma: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(SmaResult, self.run("sma", params=fields, **options))

    def ema(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> EmaResult:
        """Exponential moving average: e <- e + alpha (close - e), alpha = 2 / (period + 1).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            convention: talib: the first number, at bar `period` - 1 counted from 0, is the mean of the first `period`
                prices. tradingview: it is the first price, at bar 0.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            ema: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(EmaResult, self.run("ema", params=fields, **options))

    def bollinger(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        width: float | Sequence[float] = 2.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> BollingerResult:
        """Bollinger bands: mean and `width` population standard deviations around it.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            width: standard deviations (ddof = 0) between mean and band
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            upper: middle + width * deviation; of the inputs' shape and dtype
            middle: mean of the last `period` prices: the sma, byte for byte; of the inputs' shape and dtype
            lower: middle - width * deviation; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, width=width, nan_policy=nan_policy)
        return typed(BollingerResult, self.run("bollinger", params=fields, **options))

    def rma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RmaResult:
        """Wilder's average: alpha = 1 / period, from the mean of the first `period` prices (Wilder 1978).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            rma: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(RmaResult, self.run("rma", params=fields, **options))

    def wma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> WmaResult:
        """Weighted average: weights period, period - 1, ... 1 from the newest price on.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            wma: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(WmaResult, self.run("wma", params=fields, **options))

    def trima(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TrimaResult:
        """Triangular average: a simple average of a simple average.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            trima: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(TrimaResult, self.run("trima", params=fields, **options))

    def dema(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DemaResult:
        """Double exponential average: 2 e - ema(e), e = ema(close) (Mulloy 1994).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            dema: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(DemaResult, self.run("dema", params=fields, **options))

    def tema(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TemaResult:
        """Triple exponential average: 3 e - 3 ema(e) + ema(ema(e)) (Mulloy 1994).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            tema: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(TemaResult, self.run("tema", params=fields, **options))

    def t3(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 5,
        factor: float = 0.7,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> T3Result:
        """Tillson's T3: six exponential averages, weighed by the volume factor (Tillson 1998).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            factor: volume factor: 0 is an ema of ema of ema; 0 to 1
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            t3: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, factor=factor, nan_policy=nan_policy)
        return typed(T3Result, self.run("t3", params=fields, **options))

    def hma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> HmaResult:
        """Hull average: wma(2 wma(close, period / 2) - wma(close, period), sqrt(period)), both rounded down (Hull
        2005).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            hma: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(HmaResult, self.run("hma", params=fields, **options))

    def zlma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ZlmaResult:
        """Zero-lag exponential average: ema of 2 close - the close (period - 1) / 2 bars ago (Ehlers and Way 2010).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            zlma: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(ZlmaResult, self.run("zlma", params=fields, **options))

    def kama(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        fast: int | Sequence[int] = 2,
        slow: int | Sequence[int] = 30,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> KamaResult:
        """Kaufman's adaptive average: alpha between 2 / (slow + 1) and 2 / (fast + 1), squared, by the efficiency ratio
        over `period` bars; from the close before the first (Kaufman 1995).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            kama: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(KamaResult, self.run("kama", params=fields, **options))

    def vidya(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        pace_period: int = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VidyaResult:
        """Chande's variable index dynamic average: alpha = 2 / (period + 1) times the absolute momentum oscillator of
        `pace_period` changes, 0 to 1, by plain sums (Chande and Kroll 1994). It starts from the mean of the closes
        before the first oscillator. Chande's article of 1992 has a ratio of deviations in its place.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            pace_period: changes that the momentum oscillator sums; 2 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            vidya: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, pace_period=pace_period, nan_policy=nan_policy)
        return typed(VidyaResult, self.run("vidya", params=fields, **options))

    def alma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 9,
        offset: float = 0.85,
        sigma: float = 6.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AlmaResult:
        """Arnaud Legoux average: weights by a bell curve whose middle lies `offset` of the way from the oldest bar to
        the newest and whose deviation is period / sigma bars (Legoux and Kouzis-Loukas 2009).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 1,000, or a list of such
            offset: 0: the oldest bar weighs most. 1: the newest does.; 0 to 1
            sigma: the higher, the fewer bars weigh; 0.1 to 100
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            alma: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, offset=offset, sigma=sigma, nan_policy=nan_policy)
        return typed(AlmaResult, self.run("alma", params=fields, **options))

    def midpoint(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MidpointResult:
        """Middle of the highest and the lowest close of the last `period` bars.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            midpoint: the middle; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(MidpointResult, self.run("midpoint", params=fields, **options))

    def midprice(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MidpriceResult:
        """Middle of the highest high and the lowest low of the last `period` bars.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            midprice: the middle; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(MidpriceResult, self.run("midprice", params=fields, **options))

    def vwma(
        self,
        close: Numbers,
        volume: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VwmaResult:
        """Average weighed by volume over the last `period` bars; NaN where nothing was traded in all of them.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            vwma: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(VwmaResult, self.run("vwma", params=fields, **options))

    def average_price(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AveragePriceResult:
        """Mean of open, high, low and close.

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            average_price: the middle; of the inputs' shape and dtype
        """
        fields = given(open=open, high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(AveragePriceResult, self.run("average_price", params=fields, **options))

    def median_price(
        self, high: Numbers, low: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> MedianPriceResult:
        """Mean of high and low.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            median_price: the middle; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, nan_policy=nan_policy)
        return typed(MedianPriceResult, self.run("median_price", params=fields, **options))

    def typical_price(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TypicalPriceResult:
        """Mean of high, low and close.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            typical_price: the middle; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(TypicalPriceResult, self.run("typical_price", params=fields, **options))

    def weighted_close(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> WeightedCloseResult:
        """Mean of high, low and twice the close.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            weighted_close: the middle; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(WeightedCloseResult, self.run("weighted_close", params=fields, **options))

    def donchian(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 20,
        current: bool = True,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DonchianResult:
        """Donchian channel: the highest high and the lowest low of the last `period` bars.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            current: whether the bar itself is one of them; else they end before it
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            upper: the upper band; of the inputs' shape and dtype
            middle: the mean of both; of the inputs' shape and dtype
            lower: the lower band; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, period=period, current=current, nan_policy=nan_policy)
        return typed(DonchianResult, self.run("donchian", params=fields, **options))

    def keltner(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        range_period: int = 10,
        width: float | Sequence[float] = 2.0,
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> KeltnerResult:
        """Keltner channel: an exponential average and `width` average true ranges around it (Keltner 1960, Raschke).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            range_period: bars of the range's average; 1 to 100,000
            width: how many deviations or ranges lie between the middle and a band
            convention: talib: the average is of typical prices, and both averages start so late that they have their
                first number at the same bar. tradingview: it is of closes, and each starts as soon as it can.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            upper: the upper band; of the inputs' shape and dtype
            middle: the middle; of the inputs' shape and dtype
            lower: the lower band; of the inputs' shape and dtype
        """
        fields = given(
            high=high,
            low=low,
            close=close,
            period=period,
            range_period=range_period,
            width=width,
            convention=convention,
            nan_policy=nan_policy,
        )
        return typed(KeltnerResult, self.run("keltner", params=fields, **options))

    def acceleration_bands(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AccelerationBandsResult:
        """Acceleration bands: averages of high (1 + 4 r) and low (1 - 4 r), r = (high - low) / (high + low) (Headley
        2002).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            upper: the upper band; of the inputs' shape and dtype
            middle: the simple average of closes; of the inputs' shape and dtype
            lower: the lower band; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(AccelerationBandsResult, self.run("acceleration_bands", params=fields, **options))

    def ichimoku(
        self,
        high: Numbers,
        low: Numbers,
        *,
        conversion_period: int = 9,
        base_period: int = 26,
        span_period: int = 52,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> IchimokuResult:
        """Ichimoku: middles of highest highs and lowest lows. Charts draw the spans `base_period` bars ahead and the
        lagging line as many behind; here every number stands at the bar at which it is known.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            conversion_period: bars of the conversion line; 1 to 100,000
            base_period: bars of the base line; 1 to 100,000
            span_period: bars of span B; 1 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            conversion: tenkan-sen: middle of the last `conversion_period` bars; of the inputs' shape and dtype
            base: kijun-sen: middle of the last `base_period` bars; of the inputs' shape and dtype
            span_a: senkou span A: mean of conversion and base, drawn `base_period` bars ahead; of the inputs' shape and
                dtype
            span_b: senkou span B: middle of the last `span_period` bars, drawn `base_period` bars ahead; of the inputs'
                shape and dtype
        """
        fields = given(
            high=high,
            low=low,
            conversion_period=conversion_period,
            base_period=base_period,
            span_period=span_period,
            nan_policy=nan_policy,
        )
        return typed(IchimokuResult, self.run("ichimoku", params=fields, **options))

    def parabolic_sar(
        self,
        high: Numbers,
        low: Numbers,
        *,
        acceleration: float = 0.02,
        maximum: float = 0.2,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ParabolicSarResult:
        """Parabolic stop and reverse: a stop that follows the extreme price, the quicker the longer it lasts, and
        changes sides when it is met (Wilder 1978). It begins on the side to which the second bar moves more.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            acceleration: the pace at first, and what each extreme adds
            maximum: the pace at most
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            parabolic_sar: the stop; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, acceleration=acceleration, maximum=maximum, nan_policy=nan_policy)
        return typed(ParabolicSarResult, self.run("parabolic_sar", params=fields, **options))

    def parabolic_sar_extended(
        self,
        high: Numbers,
        low: Numbers,
        *,
        start: float = 0.0,
        apart: float = 0.0,
        first_up: float = 0.02,
        step_up: float = 0.02,
        maximum_up: float = 0.2,
        first_down: float = 0.02,
        step_down: float = 0.02,
        maximum_down: float = 0.2,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ParabolicSarExtendedResult:
        """Parabolic stop and reverse with a pace of its own for each side, a first stop, and a distance at turns; of a
        pace above its maximum the maximum counts.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            start: first stop: above 0, below the bars; below 0, above them; 0, Wilder's; -1e+30 to 1e+30
            apart: share by which a turn moves the stop away from the bars; 0 to 1
            first_up: pace at first while the stop is below the bars; 0 to 1
            step_up: what each higher high adds to it; 0 to 1
            maximum_up: that pace at most; 0 to 1
            first_down: pace at first while the stop is above the bars; 0 to 1
            step_down: what each lower low adds to it; 0 to 1
            maximum_down: that pace at most; 0 to 1
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            parabolic_sar_extended: the stop, as a negative number while it lies above the bars; of the inputs' shape
                and dtype
        """
        fields = given(
            high=high,
            low=low,
            start=start,
            apart=apart,
            first_up=first_up,
            step_up=step_up,
            maximum_up=maximum_up,
            first_down=first_down,
            step_down=step_down,
            maximum_down=maximum_down,
            nan_policy=nan_policy,
        )
        return typed(ParabolicSarExtendedResult, self.run("parabolic_sar_extended", params=fields, **options))

    def supertrend(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        width: float | Sequence[float] = 3.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> SupertrendResult:
        """Supertrend: bands of `width` average true ranges around (high + low) / 2 that only close in; the trend turns
        where the close leaves them.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            width: how many deviations or ranges lie between the middle and a band
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            supertrend: the lower band in an upward trend, the upper one in a downward trend; of the inputs' shape and
                dtype
            trend: 1 upward, -1 downward; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, width=width, nan_policy=nan_policy)
        return typed(SupertrendResult, self.run("supertrend", params=fields, **options))

    def heikin_ashi(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> HeikinAshiResult:
        """Heikin-Ashi bars: the close is the mean of the bar, the open the middle of the Heikin-Ashi bar before.

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            open: the middle of the last Heikin-Ashi open and close; of the bar itself at first; of the inputs' shape
                and dtype
            high: the highest of the bar and of both; of the inputs' shape and dtype
            low: the lowest of the bar and of both; of the inputs' shape and dtype
            close: the mean of open, high, low and close; of the inputs' shape and dtype
        """
        fields = given(open=open, high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(HeikinAshiResult, self.run("heikin_ashi", params=fields, **options))

    def rsi(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        convention: Literal["talib", "tradingview", "cutler", "ema"] = "talib",
        flat: Literal[0, 50, 100, "nan"] = 50,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RsiResult:
        """Relative strength index: 100 gains / (gains + losses), both averaged by the convention (Wilder 1978).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: changes in the average; 14 is customary; 2 to 100,000, or a list of such
            convention: talib, tradingview: Wilder's smoothing, seeded by the mean of the first `period` changes.
                cutler: simple means of the last `period` gains and losses. ema: alpha = 2 / (period + 1), seeded by the
                first change.
            flat: the RSI of prices that never moved: 50, or 0 (as TA-Lib), 100 (as Pine's classic source), nan
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            rsi: the index; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, convention=convention, flat=flat, nan_policy=nan_policy)
        return typed(RsiResult, self.run("rsi", params=fields, **options))

    def macd(
        self,
        close: Numbers,
        *,
        fast: int | Sequence[int] = 12,
        slow: int | Sequence[int] = 26,
        signal: int | Sequence[int] = 9,
        average: Literal["ema", "sma", "fixed"] = "ema",
        convention: Literal["talib", "plain", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MacdResult:
        """Moving average convergence/divergence (Appel 1979).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            signal: bars of the signal line's average; 1 to 100,000, or a list of such
            average: exponential or simple averages. fixed: exponential ones of alpha 0.15 and 0.075, which Appel uses
                for fast 12 and slow 26.
            convention: talib: the fast average starts so late that both have their first number at the same bar, and
                outputs are shown from the first bar that has all. plain: each average starts as soon as it can.
                tradingview: exponential averages start from the first price.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            macd: the fast less the slow average; of the inputs' shape and dtype
            signal: the average of macd, exponential or simple as the others; of the inputs' shape and dtype
            histogram: macd - signal; of the inputs' shape and dtype
        """
        fields = given(
            close=close,
            fast=fast,
            slow=slow,
            signal=signal,
            average=average,
            convention=convention,
            nan_policy=nan_policy,
        )
        return typed(MacdResult, self.run("macd", params=fields, **options))

    def apo(
        self,
        close: Numbers,
        *,
        fast: int | Sequence[int] = 12,
        slow: int | Sequence[int] = 26,
        average: Literal["ema", "sma"] = "ema",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ApoResult:
        """Absolute price oscillator: the fast less the slow average.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            average: exponential or simple averages
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            apo: the difference; of the inputs' shape and dtype
        """
        fields = given(close=close, fast=fast, slow=slow, average=average, nan_policy=nan_policy)
        return typed(ApoResult, self.run("apo", params=fields, **options))

    def ppo(
        self,
        close: Numbers,
        *,
        fast: int | Sequence[int] = 12,
        slow: int | Sequence[int] = 26,
        average: Literal["ema", "sma"] = "ema",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> PpoResult:
        """Percentage price oscillator: the fast less the slow average, in percent of the slow one.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            average: exponential or simple averages
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            ppo: the difference in percent; of the inputs' shape and dtype
        """
        fields = given(close=close, fast=fast, slow=slow, average=average, nan_policy=nan_policy)
        return typed(PpoResult, self.run("ppo", params=fields, **options))

    def pvo(
        self,
        volume: Numbers,
        *,
        fast: int | Sequence[int] = 12,
        slow: int | Sequence[int] = 26,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> PvoResult:
        """Percentage volume oscillator: the percentage price oscillator of volume.

        Args:
            volume: volumes, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            pvo: the difference in percent; of the inputs' shape and dtype
        """
        fields = given(volume=volume, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(PvoResult, self.run("pvo", params=fields, **options))

    def momentum(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MomentumResult:
        """Momentum: the change of the close over `period` bars.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            momentum: the change; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(MomentumResult, self.run("momentum", params=fields, **options))

    def roc(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        form: Literal["percent", "fraction", "ratio", "ratio100", "log"] = "percent",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RocResult:
        """Rate of change: the close relative to that of `period` bars ago; 0 where that one was 0.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            form: percent: 100 (c / c' - 1). fraction: (c - c') / c'. ratio: c / c'. ratio100: 100 c / c'. log: ln(c /
                c'), NaN where that has none.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            roc: the rate; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, form=form, nan_policy=nan_policy)
        return typed(RocResult, self.run("roc", params=fields, **options))

    def stochastic(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        smooth: int | Sequence[int] = 3,
        signal: int | Sequence[int] = 3,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> StochasticResult:
        """Stochastic oscillator: where the close lies between the lowest low and the highest high of `period` bars, 0
        to 100, smoothed; 0 where they are equal (Lane 1984).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            smooth: bars of the first smoothing; 1 to 100,000, or a list of such
            signal: bars of the signal line's average; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            k: the position, averaged over `smooth` bars; of the inputs' shape and dtype
            d: the average of k over `signal` bars; of the inputs' shape and dtype
        """
        fields = given(
            high=high, low=low, close=close, period=period, smooth=smooth, signal=signal, nan_policy=nan_policy
        )
        return typed(StochasticResult, self.run("stochastic", params=fields, **options))

    def stochastic_rsi(
        self,
        close: Numbers,
        *,
        rsi_period: int = 14,
        period: int | Sequence[int] = 14,
        signal: int | Sequence[int] = 3,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> StochasticRsiResult:
        """Stochastic RSI: where the RSI lies between its lowest and highest of `period` bars (Chande and Kroll 1994).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            rsi_period: changes in the RSI's average; 2 to 100,000
            period: bars in the window; 1 to 100,000, or a list of such
            signal: bars of the signal line's average; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            k: the position, 0 to 100; of the inputs' shape and dtype
            d: the average of k over `signal` bars; of the inputs' shape and dtype
        """
        fields = given(close=close, rsi_period=rsi_period, period=period, signal=signal, nan_policy=nan_policy)
        return typed(StochasticRsiResult, self.run("stochastic_rsi", params=fields, **options))

    def williams_r(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> WilliamsRResult:
        """Williams' %R: how far the close lies below the highest high of `period` bars, -100 to 0; 0 where high and low
        are equal.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            williams_r: the position; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(WilliamsRResult, self.run("williams_r", params=fields, **options))

    def cci(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CciResult:
        """Commodity channel index: the distance of the typical price from its mean, in 0.015 mean absolute deviations
        (Lambert 1980); 0 where there is no deviation.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            cci: the index; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(CciResult, self.run("cci", params=fields, **options))

    def cmo(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        convention: Literal["talib", "chande"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CmoResult:
        """Chande momentum oscillator: gains less losses relative to both, -100 to 100; 0 where nothing moved.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            convention: talib: gains and losses by Wilder's average. chande: plain sums (Chande and Kroll 1994).
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            cmo: the oscillator; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(CmoResult, self.run("cmo", params=fields, **options))

    def trix(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 15,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TrixResult:
        """TRIX: the change of an exponential average of an average of an average, in percent (Hutson 1983).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            trix: the change in percent; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(TrixResult, self.run("trix", params=fields, **options))

    def tsi(
        self,
        close: Numbers,
        *,
        slow: int | Sequence[int] = 25,
        fast: int | Sequence[int] = 13,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TsiResult:
        """True strength index: changes, averaged twice, relative to their sizes, -100 to 100 (Blau 1991).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            slow: bars of the first average; 2 to 100,000, or a list of such
            fast: bars of the second average; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            tsi: the index; of the inputs' shape and dtype
        """
        fields = given(close=close, slow=slow, fast=fast, nan_policy=nan_policy)
        return typed(TsiResult, self.run("tsi", params=fields, **options))

    def ultimate_oscillator(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        short: int = 7,
        medium: int = 14,
        long: int = 28,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> UltimateOscillatorResult:
        """Ultimate oscillator: buying pressure over three windows, weighed 4, 2 and 1, 0 to 100 (Williams 1985).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            short: bars of the window weighed 4; 1 to 100,000
            medium: bars of the window weighed 2; 1 to 100,000
            long: bars of the window weighed 1; 1 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            ultimate_oscillator: the oscillator; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, short=short, medium=medium, long=long, nan_policy=nan_policy)
        return typed(UltimateOscillatorResult, self.run("ultimate_oscillator", params=fields, **options))

    def awesome_oscillator(
        self,
        high: Numbers,
        low: Numbers,
        *,
        fast: int | Sequence[int] = 5,
        slow: int | Sequence[int] = 34,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AwesomeOscillatorResult:
        """Awesome oscillator: the fast less the slow simple average of (high + low) / 2 (Williams 1998).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            awesome_oscillator: the difference; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(AwesomeOscillatorResult, self.run("awesome_oscillator", params=fields, **options))

    def acceleration_oscillator(
        self,
        high: Numbers,
        low: Numbers,
        *,
        fast: int | Sequence[int] = 5,
        slow: int | Sequence[int] = 34,
        signal: int | Sequence[int] = 5,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AccelerationOscillatorResult:
        """Acceleration oscillator: the awesome oscillator less its simple average (Williams 1998).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            signal: bars of the signal line's average; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            acceleration_oscillator: the difference; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, fast=fast, slow=slow, signal=signal, nan_policy=nan_policy)
        return typed(AccelerationOscillatorResult, self.run("acceleration_oscillator", params=fields, **options))

    def aroon(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AroonResult:
        """Aroon: how long ago the highest high and the lowest low of the last `period` + 1 bars were, 100 for now; of
        equal ones the newest counts (Chande 1995).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            up: 100 (period - bars since the highest high) / period; of the inputs' shape and dtype
            down: the same of the lowest low; of the inputs' shape and dtype
            oscillator: up - down; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(AroonResult, self.run("aroon", params=fields, **options))

    def directional_movement(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DirectionalMovementResult:
        """Directional movement: Wilder's sums of what bars reach above and below the last (Wilder 1978).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            plus: +DM; of the inputs' shape and dtype
            minus: -DM; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(DirectionalMovementResult, self.run("directional_movement", params=fields, **options))

    def adx(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AdxResult:
        """Average directional index with its lines (Wilder 1978).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            convention: talib: movements and range by Wilder's sums, from those of the first period - 1 bars.
                tradingview: by Wilder's averages, from the mean of `period` bars.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            adx: Wilder's average of dx; of the inputs' shape and dtype
            plus_di: +DI: 100 times upward movement / true range, by Wilder's sums; of the inputs' shape and dtype
            minus_di: -DI: the same of downward movement; of the inputs' shape and dtype
            dx: 100 |+DI - -DI| / (+DI + -DI); of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(AdxResult, self.run("adx", params=fields, **options))

    def adxr(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AdxrResult:
        """Average directional movement rating: the mean of adx and of adx `period` - 1 bars ago (Wilder 1978).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            adxr: the rating; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(AdxrResult, self.run("adxr", params=fields, **options))

    def vortex(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VortexResult:
        """Vortex: how far highs reach from the last lows, and lows from the last highs, relative to the true range
        (Botes and Siepman 2010).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            plus: +VI; of the inputs' shape and dtype
            minus: -VI; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(VortexResult, self.run("vortex", params=fields, **options))

    def balance_of_power(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> BalanceOfPowerResult:
        """Balance of power: (close - open) / (high - low); 0 where high and low are equal.

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            balance_of_power: the balance; of the inputs' shape and dtype
        """
        fields = given(open=open, high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(BalanceOfPowerResult, self.run("balance_of_power", params=fields, **options))

    def qstick(
        self,
        open: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> QstickResult:
        """Qstick: the simple average of close - open (Chande 1994).

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            qstick: the average; of the inputs' shape and dtype
        """
        fields = given(open=open, close=close, period=period, nan_policy=nan_policy)
        return typed(QstickResult, self.run("qstick", params=fields, **options))

    def elder_ray(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 13,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ElderRayResult:
        """Elder's ray: how far high and low lie from an exponential average of closes (Elder 1989).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            bull: high - ema; of the inputs' shape and dtype
            bear: low - ema; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(ElderRayResult, self.run("elder_ray", params=fields, **options))

    def efficiency_ratio(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> EfficiencyRatioResult:
        """Efficiency ratio: the change over `period` bars relative to the way there, 0 to 1 (Kaufman 1995).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            efficiency_ratio: the ratio; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(EfficiencyRatioResult, self.run("efficiency_ratio", params=fields, **options))

    def coppock(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        short: int = 11,
        long: int = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CoppockResult:
        """Coppock curve: the weighted average of the sum of two rates of change (Coppock 1962).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            short: bars of the one rate of change; 1 to 100,000
            long: bars of the other; 1 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            coppock: the curve; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, short=short, long=long, nan_policy=nan_policy)
        return typed(CoppockResult, self.run("coppock", params=fields, **options))

    def vertical_horizontal_filter(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 28,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VerticalHorizontalFilterResult:
        """Vertical horizontal filter: the highest less the lowest close relative to the way between them (White 1991).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            vertical_horizontal_filter: the ratio; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(VerticalHorizontalFilterResult, self.run("vertical_horizontal_filter", params=fields, **options))

    def detrended_price(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DetrendedPriceResult:
        """Detrended price oscillator: the close period / 2 + 1 bars ago less the mean of the last `period` closes.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            detrended_price: the difference; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(DetrendedPriceResult, self.run("detrended_price", params=fields, **options))

    def intraday_momentum(
        self,
        open: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> IntradayMomentumResult:
        """Intraday momentum index: an RSI of close - open, 0 to 100; 50 where nothing moved (Chande and Kroll 1994).

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            intraday_momentum: the index; of the inputs' shape and dtype
        """
        fields = given(open=open, close=close, period=period, nan_policy=nan_policy)
        return typed(IntradayMomentumResult, self.run("intraday_momentum", params=fields, **options))

    def kdj(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 9,
        smooth: int | Sequence[int] = 3,
        signal: int | Sequence[int] = 3,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> KdjResult:
        """KDJ: a stochastic oscillator smoothed by Wilder's averages, and how far its lines are apart.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            smooth: bars of the first smoothing; 1 to 100,000, or a list of such
            signal: bars of the signal line's average; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            k: the average of the position over `smooth` bars; of the inputs' shape and dtype
            d: the average of k over `signal` bars; of the inputs' shape and dtype
            j: 3 k - 2 d; of the inputs' shape and dtype
        """
        fields = given(
            high=high, low=low, close=close, period=period, smooth=smooth, signal=signal, nan_policy=nan_policy
        )
        return typed(KdjResult, self.run("kdj", params=fields, **options))

    def stochastic_momentum(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 13,
        slow: int | Sequence[int] = 25,
        fast: int | Sequence[int] = 2,
        signal: int | Sequence[int] = 9,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> StochasticMomentumResult:
        """Stochastic momentum index: how far the close lies from the middle of the range, averaged twice, relative to
        half the range, -100 to 100 (Blau 1993).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            slow: bars of the first average; 1 to 100,000, or a list of such
            fast: bars of the second average; 1 to 100,000, or a list of such
            signal: bars of the signal line's average; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            smi: the index; of the inputs' shape and dtype
            signal: the exponential average of smi; of the inputs' shape and dtype
        """
        fields = given(
            high=high, low=low, close=close, period=period, slow=slow, fast=fast, signal=signal, nan_policy=nan_policy
        )
        return typed(StochasticMomentumResult, self.run("stochastic_momentum", params=fields, **options))

    def forecast_oscillator(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ForecastOscillatorResult:
        """Forecast oscillator: how far the close lies from what the regression of the `period` closes before it
        forecast, in percent of the close (Chande 1992).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            forecast_oscillator: the distance in percent; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(ForecastOscillatorResult, self.run("forecast_oscillator", params=fields, **options))

    def relative_volatility(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        deviation: int = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RelativeVolatilityResult:
        """Relative volatility index: an RSI of deviations, counted as gains or losses by the change of the close; 50
        where nothing moved (Dorsey 1993).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            deviation: bars of the deviation; 2 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            relative_volatility: the index, 0 to 100; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, deviation=deviation, nan_policy=nan_policy)
        return typed(RelativeVolatilityResult, self.run("relative_volatility", params=fields, **options))

    def true_range(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TrueRangeResult:
        """True range: the range of the bar and the close before it (Wilder 1978).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            convention: talib: the first bar has no true range, since there is no close before it. tradingview: it has
                high - low, so that averages begin a bar earlier.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            true_range: the range; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, convention=convention, nan_policy=nan_policy)
        return typed(TrueRangeResult, self.run("true_range", params=fields, **options))

    def atr(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AtrResult:
        """Average true range: Wilder's average of the true range (Wilder 1978).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            convention: talib: the first bar has no true range, since there is no close before it. tradingview: it has
                high - low, so that averages begin a bar earlier.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            atr: the average range; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(AtrResult, self.run("atr", params=fields, **options))

    def natr(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> NatrResult:
        """Average true range in percent of the close.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            convention: talib: the first bar has no true range, since there is no close before it. tradingview: it has
                high - low, so that averages begin a bar earlier.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            natr: 100 atr / close; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(NatrResult, self.run("natr", params=fields, **options))

    def adr(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AdrResult:
        """Average daily range: the simple average of high - low.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            adr: the average range; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(AdrResult, self.run("adr", params=fields, **options))

    def chaikin_volatility(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 10,
        lookback: int = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ChaikinVolatilityResult:
        """Chaikin's volatility: the change of the exponential average of high - low, in percent.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            lookback: bars from which the change is counted; 1 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            chaikin_volatility: the change in percent; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, period=period, lookback=lookback, nan_policy=nan_policy)
        return typed(ChaikinVolatilityResult, self.run("chaikin_volatility", params=fields, **options))

    def mass_index(
        self,
        high: Numbers,
        low: Numbers,
        *,
        fast: int | Sequence[int] = 9,
        slow: int | Sequence[int] = 25,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MassIndexResult:
        """Mass index: the sum of ema(range) / ema(ema(range)) over `slow` bars (Dorsey 1992).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            fast: bars of both averages; 2 to 100,000, or a list of such
            slow: bars of the sum; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            mass_index: the sum; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(MassIndexResult, self.run("mass_index", params=fields, **options))

    def close_to_close(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        periods_per_year: float = 252.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CloseToCloseResult:
        """Volatility of logarithmic returns: their sample deviation (ddof = 1).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            periods_per_year: bars per year; the result is multiplied by its square root
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            close_to_close: the volatility per year, 0.2 for 20 %; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, periods_per_year=periods_per_year, nan_policy=nan_policy)
        return typed(CloseToCloseResult, self.run("close_to_close", params=fields, **options))

    def parkinson(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 20,
        periods_per_year: float = 252.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ParkinsonResult:
        """Parkinson's volatility: of the range, mean of ln(high / low)^2 / (4 ln 2) (Parkinson 1980).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            periods_per_year: bars per year; the result is multiplied by its square root
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            parkinson: the volatility per year, 0.2 for 20 %; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, period=period, periods_per_year=periods_per_year, nan_policy=nan_policy)
        return typed(ParkinsonResult, self.run("parkinson", params=fields, **options))

    def garman_klass(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        periods_per_year: float = 252.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> GarmanKlassResult:
        """Garman and Klass's volatility: mean of ln(high / low)^2 / 2 - (2 ln 2 - 1) ln(close / open)^2 (Garman and
        Klass 1980).

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            periods_per_year: bars per year; the result is multiplied by its square root
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            garman_klass: the volatility per year, 0.2 for 20 %; of the inputs' shape and dtype
        """
        fields = given(
            open=open,
            high=high,
            low=low,
            close=close,
            period=period,
            periods_per_year=periods_per_year,
            nan_policy=nan_policy,
        )
        return typed(GarmanKlassResult, self.run("garman_klass", params=fields, **options))

    def rogers_satchell(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        periods_per_year: float = 252.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RogersSatchellResult:
        """Rogers and Satchell's volatility, which a drift does not change: mean of ln(h / c) ln(h / o) + ln(l / c) ln(l
        / o) (Rogers and Satchell 1991).

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            periods_per_year: bars per year; the result is multiplied by its square root
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            rogers_satchell: the volatility per year, 0.2 for 20 %; of the inputs' shape and dtype
        """
        fields = given(
            open=open,
            high=high,
            low=low,
            close=close,
            period=period,
            periods_per_year=periods_per_year,
            nan_policy=nan_policy,
        )
        return typed(RogersSatchellResult, self.run("rogers_satchell", params=fields, **options))

    def yang_zhang(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        periods_per_year: float = 252.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> YangZhangResult:
        """Yang and Zhang's volatility: overnight variance, k times that from open to close, 1 - k times Rogers and
        Satchell's; k = 0.34 / (1.34 + (n + 1) / (n - 1)) (Yang and Zhang 2000).

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            periods_per_year: bars per year; the result is multiplied by its square root
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            yang_zhang: the volatility per year, 0.2 for 20 %; of the inputs' shape and dtype
        """
        fields = given(
            open=open,
            high=high,
            low=low,
            close=close,
            period=period,
            periods_per_year=periods_per_year,
            nan_policy=nan_policy,
        )
        return typed(YangZhangResult, self.run("yang_zhang", params=fields, **options))

    def obv(
        self,
        close: Numbers,
        volume: Numbers,
        *,
        convention: Literal["talib", "zero"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ObvResult:
        """On-balance volume: volume added where the close rises and taken away where it falls (Granville 1963).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            convention: talib: begins with the first bar's volume. zero: begins with 0.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            obv: the balance; of the inputs' shape and dtype
        """
        fields = given(close=close, volume=volume, convention=convention, nan_policy=nan_policy)
        return typed(ObvResult, self.run("obv", params=fields, **options))

    def ad(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AdResult:
        """Accumulation/distribution: the sum of money flow volumes (Chaikin).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            ad: the sum; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, volume=volume, nan_policy=nan_policy)
        return typed(AdResult, self.run("ad", params=fields, **options))

    def adosc(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        *,
        fast: int | Sequence[int] = 3,
        slow: int | Sequence[int] = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AdoscResult:
        """Chaikin oscillator: the fast less the slow exponential average of accumulation/distribution, both from its
        first number.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 2 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            adosc: the difference; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, volume=volume, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(AdoscResult, self.run("adosc", params=fields, **options))

    def cmf(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CmfResult:
        """Chaikin money flow: money flow volume relative to volume over `period` bars, -1 to 1.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            cmf: the flow; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(CmfResult, self.run("cmf", params=fields, **options))

    def mfi(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MfiResult:
        """Money flow index: an RSI of typical price times volume, 0 to 100 (Quong and Soudack 1989).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            mfi: the index; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(MfiResult, self.run("mfi", params=fields, **options))

    def force_index(
        self,
        close: Numbers,
        volume: Numbers,
        *,
        period: int | Sequence[int] = 13,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ForceIndexResult:
        """Force index: the exponential average of the change of the close times volume (Elder 1993).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            force_index: the average; of the inputs' shape and dtype
        """
        fields = given(close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(ForceIndexResult, self.run("force_index", params=fields, **options))

    def market_facilitation(
        self,
        high: Numbers,
        low: Numbers,
        volume: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MarketFacilitationResult:
        """Market facilitation index: (high - low) / volume; 0 where there is no volume (Williams).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            market_facilitation: the index; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, volume=volume, nan_policy=nan_policy)
        return typed(MarketFacilitationResult, self.run("market_facilitation", params=fields, **options))

    def pvt(
        self, close: Numbers, volume: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> PvtResult:
        """Price volume trend: the sum of volume times the relative change of the close.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            pvt: the sum; of the inputs' shape and dtype
        """
        fields = given(close=close, volume=volume, nan_policy=nan_policy)
        return typed(PvtResult, self.run("pvt", params=fields, **options))

    def relative_volume(
        self,
        volume: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RelativeVolumeResult:
        """Relative volume: volume relative to the mean of the `period` bars before it.

        Args:
            volume: volumes, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            relative_volume: the ratio; of the inputs' shape and dtype
        """
        fields = given(volume=volume, period=period, nan_policy=nan_policy)
        return typed(RelativeVolumeResult, self.run("relative_volume", params=fields, **options))

    def vwap(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VwapResult:
        """Average price weighed by volume since the first bar.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            vwap: the average; NaN until something was traded; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, volume=volume, nan_policy=nan_policy)
        return typed(VwapResult, self.run("vwap", params=fields, **options))

    def session_vwap(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        session: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> SessionVwapResult:
        """Average price weighed by volume since the first bar of the session.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            session: a number that changes at the first bar of a session, such as the day; NaN for no change, which
                nan_policy skip takes for a bar to leave out, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            session_vwap: the average; NaN until something was traded in the session; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, volume=volume, session=session, nan_policy=nan_policy)
        return typed(SessionVwapResult, self.run("session_vwap", params=fields, **options))

    def wad(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> WadResult:
        """Williams' accumulation/distribution: the sum of how far closes lie from the true low where they rise, and
        from the true high where they fall.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            wad: the sum; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(WadResult, self.run("wad", params=fields, **options))

    def nvi(
        self, close: Numbers, volume: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> NviResult:
        """Negative volume index: 1000 times all relative changes of the close at bars of less volume than the last
        (Dysart, Fosback 1976).

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            nvi: the index; of the inputs' shape and dtype
        """
        fields = given(close=close, volume=volume, nan_policy=nan_policy)
        return typed(NviResult, self.run("nvi", params=fields, **options))

    def pvi(
        self, close: Numbers, volume: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> PviResult:
        """Positive volume index: 1000 times all relative changes of the close at bars of more volume than the last.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            volume: volumes, shape (time) or (assets, time), oldest first
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            pvi: the index; of the inputs' shape and dtype
        """
        fields = given(close=close, volume=volume, nan_policy=nan_policy)
        return typed(PviResult, self.run("pvi", params=fields, **options))

    def rolling(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        statistic: Literal[
            "mean", "sum", "std", "var", "min", "max", "zscore", "mean_deviation", "median", "skew", "kurtosis"
        ],
        ddof: Literal[0, 1] = 0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RollingResult:
        """A statistic of the last `period` closes.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            statistic: std and var divide by period - ddof. zscore: (close - mean) / std, NaN where std is 0.
                mean_deviation: the mean absolute distance from the mean. skew and kurtosis: the third and fourth moment
                in deviations, the latter less 3; NaN where nothing moves.
            ddof: degrees of freedom of std, var and zscore; 1 also corrects skew and kurtosis for small samples
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            rolling: the statistic; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, statistic=statistic, ddof=ddof, nan_policy=nan_policy)
        return typed(RollingResult, self.run("rolling", params=fields, **options))

    def rolling_quantile(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 30,
        percent: float = 50.0,
        between: Literal["linear", "nearest_rank"] = "linear",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RollingQuantileResult:
        """Quantile: the number below which `percent` of the last `period` closes lie. 50 is the median; 95 is what
        pandas calls the quantile 0.95.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 10,000, or a list of such
            percent: percent of the closes; 0 to 100
            between: linear: on the straight line between the closes at both sides, as NumPy and pandas. nearest_rank:
                the lowest close that at least `percent` of them do not exceed, as TA-Lib.
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            rolling_quantile: the quantile; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, percent=percent, between=between, nan_policy=nan_policy)
        return typed(RollingQuantileResult, self.run("rolling_quantile", params=fields, **options))

    def percent_rank(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 30,
        equal: Literal["out", "in"] = "out",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> PercentRankResult:
        """Percent rank: how many of the `period` closes before it the close exceeds, in percent.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            equal: out: equal closes do not count (TA-Lib). in: they count (TradingView).
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            percent_rank: the rank, 0 to 100; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, equal=equal, nan_policy=nan_policy)
        return typed(PercentRankResult, self.run("percent_rank", params=fields, **options))

    def extremes(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 30,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ExtremesResult:
        """Highest and lowest close of the last `period` bars, and how long ago they were; the newest of equal ones
        counts.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            highest: the highest close; of the inputs' shape and dtype
            lowest: the lowest close; of the inputs' shape and dtype
            since_highest: how many bars ago the highest was; of the inputs' shape and dtype
            since_lowest: how many bars ago the lowest was; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(ExtremesResult, self.run("extremes", params=fields, **options))

    def linear_regression(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> LinearRegressionResult:
        """Linear regression of the last `period` closes on time.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            value: the line at the newest bar; of the inputs' shape and dtype
            slope: its rise per bar; of the inputs' shape and dtype
            intercept: the line at the oldest bar of the window; of the inputs' shape and dtype
            forecast: the line one bar ahead; of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(LinearRegressionResult, self.run("linear_regression", params=fields, **options))

    def mean_reversion(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        entry: float = 2.0,
        exit: float = 0.5,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MeanReversionResult:
        """Mean reversion: the z-score of the close, and the position of one who sells above it and buys below.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            entry: |z| at which a position is taken
            exit: |z| at which it is left; 0 to 1,000,000.0
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            zscore: (close - mean) / population deviation; NaN where there is none; of the inputs' shape and dtype
            position: -1, 0 or 1: taken at |z| >= entry against the deviation, left at |z| <= exit, kept where z is NaN;
                of the inputs' shape and dtype
        """
        fields = given(close=close, period=period, entry=entry, exit=exit, nan_policy=nan_policy)
        return typed(MeanReversionResult, self.run("mean_reversion", params=fields, **options))

    def crossover(
        self,
        close: Numbers,
        *,
        fast: int | Sequence[int] = 20,
        slow: int | Sequence[int] = 50,
        average: Literal["sma", "ema"] = "sma",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CrossoverResult:
        """Crossover of a fast and a slow average: 1 at the bar at which the fast one comes to lie on the other side.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            fast: bars of the fast average; 1 to 100,000, or a list of such
            slow: bars of the slow average; 2 to 100,000, or a list of such
            average: simple or exponential averages
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            up: 1 where fast > slow, and fast <= slow a bar before; of the inputs' shape and dtype
            down: 1 where fast < slow, and fast >= slow a bar before; of the inputs' shape and dtype
        """
        fields = given(close=close, fast=fast, slow=slow, average=average, nan_policy=nan_policy)
        return typed(CrossoverResult, self.run("crossover", params=fields, **options))

    def breakout(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> BreakoutResult:
        """Breakout: the close leaves the range of the `period` bars before it.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            period: bars in the window; 1 to 100,000, or a list of such
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            breakout: 1 above the highest high, -1 below the lowest low, else 0; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(BreakoutResult, self.run("breakout", params=fields, **options))

    def swing_pivots(
        self,
        high: Numbers,
        low: Numbers,
        *,
        left: int = 5,
        right: int = 5,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> SwingPivotsResult:
        """Swing pivots: a high above those of the `left` bars before it and not below those of the `right` bars after
        it, and lows likewise. A pivot is shown at the bar that confirms it, `right` bars later; of equal highs the
        first counts.

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            left: bars before the pivot; 1 to 100,000
            right: bars after the pivot; it is known that many bars later; 1 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            high: the high of the pivot that this bar confirms, else NaN; of the inputs' shape and dtype
            low: the low of the pivot that this bar confirms, else NaN; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, left=left, right=right, nan_policy=nan_policy)
        return typed(SwingPivotsResult, self.run("swing_pivots", params=fields, **options))

    def fractal(
        self,
        high: Numbers,
        low: Numbers,
        *,
        left: int = 2,
        right: int = 2,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> FractalResult:
        """Fractals: a high above those of the `left` bars before it and of the `right` bars after it, and lows
        likewise; shown at the bar that confirms it, `right` bars later (Williams 1995).

        Args:
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            left: bars before it; 1 to 100,000
            right: bars after it; 1 to 100,000
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            high: 100 where a high is confirmed, else 0; of the inputs' shape and dtype
            low: 100 where a low is confirmed, else 0; of the inputs' shape and dtype
        """
        fields = given(high=high, low=low, left=left, right=right, nan_policy=nan_policy)
        return typed(FractalResult, self.run("fractal", params=fields, **options))

    def threshold(
        self,
        close: Numbers,
        *,
        upper: float,
        lower: float,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ThresholdResult:
        """Threshold: whether the close is above a level. With a lower level to fall below, small moves do not count.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            upper: the level to rise above; -1e+300 to 1e+300
            lower: the level to fall below, at most `upper`; -1e+300 to 1e+300
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            state: 1 from a close above `upper` to one below `lower`, else 0; at first 0; of the inputs' shape and dtype
            up: 1 at the bar at which the state becomes 1; of the inputs' shape and dtype
            down: 1 at the bar at which it becomes 0; of the inputs' shape and dtype
        """
        fields = given(close=close, upper=upper, lower=lower, nan_policy=nan_policy)
        return typed(ThresholdResult, self.run("threshold", params=fields, **options))

    def rolling_pair(
        self,
        close: Numbers,
        benchmark: Numbers,
        *,
        period: int | Sequence[int],
        statistic: Literal["covariance", "correlation", "beta"],
        of: Literal["prices", "returns"] = "prices",
        ddof: Literal[0, 1] = 0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RollingPairResult:
        """Covariance, correlation or beta of the last `period` closes and a benchmark's, which may be one for all
        assets.

        Args:
            close: closing prices, shape (time) or (assets, time), oldest first
            benchmark: another series to compare with, shape (time) or (assets, time), oldest first
            period: bars in the window; 2 to 100,000, or a list of such
            statistic: covariance divides by period - ddof. beta: covariance / variance of the benchmark.
            of: prices, or their relative changes
            ddof: degrees of freedom taken off for covariance; pandas takes 1
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            rolling_pair: the statistic; a correlation with what does not move, and a beta to it, are NaN; of the
                inputs' shape and dtype
        """
        fields = given(
            close=close,
            benchmark=benchmark,
            period=period,
            statistic=statistic,
            of=of,
            ddof=ddof,
            nan_policy=nan_policy,
        )
        return typed(RollingPairResult, self.run("rolling_pair", params=fields, **options))

    def candlestick(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        pattern: Literal[
            "abandoned_baby",
            "advance_block",
            "belt_hold",
            "breakaway",
            "closing_marubozu",
            "concealing_baby_swallow",
            "counterattack",
            "dark_cloud_cover",
            "doji",
            "doji_star",
            "dragonfly_doji",
            "engulfing",
            "evening_doji_star",
            "evening_star",
            "gravestone_doji",
            "hammer",
            "hanging_man",
            "harami",
            "harami_cross",
            "high_wave",
            "hikkake",
            "homing_pigeon",
            "identical_three_crows",
            "in_neck",
            "inverted_hammer",
            "kicking",
            "kicking_by_length",
            "ladder_bottom",
            "long_legged_doji",
            "long_line",
            "marubozu",
            "mat_hold",
            "matching_low",
            "modified_hikkake",
            "morning_doji_star",
            "morning_star",
            "on_neck",
            "piercing",
            "rickshaw_man",
            "rise_fall_three_methods",
            "separating_lines",
            "shooting_star",
            "short_line",
            "side_by_side_white",
            "side_gap_three_methods",
            "spinning_top",
            "stalled",
            "stick_sandwich",
            "takuri",
            "tasuki_gap",
            "three_black_crows",
            "three_inside",
            "three_line_strike",
            "three_outside",
            "three_stars_in_the_south",
            "three_white_soldiers",
            "thrusting",
            "tristar",
            "two_crows",
            "unique_three_river",
            "upside_gap_two_crows",
        ],
        penetration: float = 0.3,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CandlestickResult:
        """A candlestick pattern, by TA-Lib's definitions and its default measures of long, short, near and equal.

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices, shape (time) or (assets, time), oldest first
            pattern: the pattern that is looked for
            penetration: how far into the first body the last must close, as a part of it: abandoned_baby,
                dark_cloud_cover, evening_doji_star, evening_star, mat_hold, morning_doji_star, morning_star; 0 to 1
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            candlestick: 100 where it points up, -100 where down, 80 and -80 where ends are equal, 200 and -200 where a
                hikkake is confirmed, else 0; of the inputs' shape and dtype
        """
        fields = given(
            open=open, high=high, low=low, close=close, pattern=pattern, penetration=penetration, nan_policy=nan_policy
        )
        return typed(CandlestickResult, self.run("candlestick", params=fields, **options))

    def expression(
        self,
        *,
        open: Numbers | None = None,
        high: Numbers | None = None,
        low: Numbers | None = None,
        close: Numbers | None = None,
        volume: Numbers | None = None,
        benchmark: Numbers | None = None,
        session: Numbers | None = None,
        a: Numbers | None = None,
        b: Numbers | None = None,
        c: Numbers | None = None,
        d: Numbers | None = None,
        e: Numbers | None = None,
        f: Numbers | None = None,
        g: Numbers | None = None,
        h: Numbers | None = None,
        let: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ExpressionResult:
        """Several indicators in one request, or new ones: a graph of series as JSON.

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first; given if the expression reads it
            high: highest prices of the bars, shape (time) or (assets, time), oldest first; given if the expression
                reads it
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first; given if the expression reads
                it
            close: closing prices, shape (time) or (assets, time), oldest first; given if the expression reads it
            volume: volumes, shape (time) or (assets, time), oldest first; given if the expression reads it
            benchmark: another series to compare with, shape (time) or (assets, time), oldest first; given if the
                expression reads it
            session: a number that changes at the first bar of a session, such as the day; NaN for no change, which
                nan_policy skip takes for a bar to leave out, shape (time) or (assets, time), oldest first; given if the
                expression reads it
            a: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            b: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            c: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            d: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            e: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            f: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            g: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            h: any series, shape (time) or (assets, time), oldest first; given if the expression reads it
            let: named expressions, which may use the inputs and each other
            outputs: what is shown, by name: rows of `series`
            nan_policy: what gaps do: see the reference of indicators

        Returns:
            series: the outputs in the order of their names, shape (outputs, time) or (outputs, assets, time)
            names: the names of the outputs
            first: the bar from which on all that an output reads has a number, without gaps
        """
        fields = given(
            open=open,
            high=high,
            low=low,
            close=close,
            volume=volume,
            benchmark=benchmark,
            session=session,
            a=a,
            b=b,
            c=c,
            d=d,
            e=e,
            f=f,
            g=g,
            h=h,
            let=let,
            outputs=outputs,
            nan_policy=nan_policy,
        )
        return typed(ExpressionResult, self.run("expression", params=fields, **options))

    def bars(
        self,
        time: Numbers,
        *,
        price: Numbers | None = None,
        size: Numbers | None = None,
        open: Numbers | None = None,
        high: Numbers | None = None,
        low: Numbers | None = None,
        close: Numbers | None = None,
        volume: Numbers | None = None,
        vwap: Numbers | None = None,
        session_open: Numbers | None = None,
        session_close: Numbers | None = None,
        by: Literal["time", "count", "volume", "dollar"],
        every: float,
        origin: int = 0,
        gaps: Literal["omit", "nan", "last"] = "omit",
        incomplete: Literal["keep", "drop"] = "keep",
        nan_policy: Literal["error", "skip"] = "error",
        **options: Unpack[RunOptions],
    ) -> BarsResult:
        """Bars by time, count, volume or dollars with their VWAP, from ticks or from smaller bars

        Args:
            price: prices of ticks, shape (ticks)
            size: sizes of ticks, shape (ticks), at least 0
            open: opening, highest, lowest or closing prices of smaller bars, shape (bars) or (assets, bars)
            high: opening, highest, lowest or closing prices of smaller bars, shape (bars) or (assets, bars)
            low: opening, highest, lowest or closing prices of smaller bars, shape (bars) or (assets, bars)
            close: opening, highest, lowest or closing prices of smaller bars, shape (bars) or (assets, bars)
            volume: volumes of smaller bars, shape (bars) or (assets, bars), at least 0
            vwap: average prices of smaller bars, shape (bars) or (assets, bars); else (high + low + close) / 3. May be
                NaN where the volume is 0
            time: of each tick, or the start of each smaller bar: nanoseconds since 1970 UTC, not decreasing
            session_open: when sessions open: nanoseconds since 1970 UTC, ascending; entries outside the sessions are
                left out, and no bar spans two
            session_close: when they close; an entry at that time is outside
            by: what closes a bar. time: its end. count: so many entries. volume, dollar: the entry at which the sum of
                sizes, or of prices times sizes, reaches `every`; a large entry closes one bar, and its excess is not
                carried over
            every: length of a bar: seconds for time, entries for count, else the sum that closes it
            origin: where a bar of time begins, and all others by multiples of `every`: nanoseconds since 1970 UTC; with
                sessions bars begin at each session's open instead
            gaps: a bar of time without an entry, between the first and the last bar: left out, NaN, or all prices those
                of the last close; with volume 0, count 0 and no vwap
            incomplete: bars that may still change or did not reach `every`: kept with `complete` 0, or left out
            nan_policy: entries with a NaN: refused, or left out as if they did not exist

        Returns:
            time: when a bar starts: (bars), int64 nanoseconds since 1970 UTC; by time its place in the grid, else that
                of its first entry
            close_time: by time when a bar ends, which belongs to the next; else the time of its last entry
            open: first prices: (bars) or (assets, bars), of the inputs' dtype
            high: highest prices
            low: lowest prices
            close: last prices
            volume: sums of sizes
            vwap: prices weighted by size; NaN where the volume is 0
            count: entries in each bar, int64
            complete: 1 where a bar can change no more: (bars), uint8
            left_out: times outside the sessions, or at which no asset has all its numbers
        """
        fields = given(
            time=time,
            price=price,
            size=size,
            open=open,
            high=high,
            low=low,
            close=close,
            volume=volume,
            vwap=vwap,
            session_open=session_open,
            session_close=session_close,
            by=by,
            every=every,
            origin=origin,
            gaps=gaps,
            incomplete=incomplete,
            nan_policy=nan_policy,
        )
        return typed(BarsResult, self.run("bars", params=fields, **options))

    def cross_rank(
        self,
        values: Numbers,
        *,
        groups: Numbers | None = None,
        ties: Literal["average", "min", "max", "dense", "first"] = "average",
        percentile: bool = False,
        **options: Unpack[RunOptions],
    ) -> CrossRankResult:
        """Rank or percentile of each asset among all assets, or its group, at each bar.

        Args:
            values: a number for each asset and bar, shape (assets, time), oldest bar first; NaN: the asset is not there
                at that bar
            groups: a label for each asset, shape (assets) or (assets, time), such as its industry; each group has its
                own ranks, mean and deviation, and an intercept of its own beside factors; a negative label: in no
                group, and NaN in the answer
            ties: ranks of equal numbers, as pandas names them. average, min, max: of the ranks they have together.
                dense: the same rank, and the next number has the next one. first: in the order of the assets.
            percentile: divide by the number of ranked assets (dense: by the greatest rank), so that ranks are above 0
                and at most 1

        Returns:
            rank: 1 for the least number, or its percentile; of the shape and dtype of values
        """
        fields = given(values=values, groups=groups, ties=ties, percentile=percentile)
        return typed(CrossRankResult, self.run("cross_rank", params=fields, **options))

    def cross_zscore(
        self, values: Numbers, *, groups: Numbers | None = None, ddof: Literal[0, 1] = 0, **options: Unpack[RunOptions]
    ) -> CrossZscoreResult:
        """Distance of each asset from the mean of all assets, or its group, in standard deviations, at each bar.

        Args:
            values: a number for each asset and bar, shape (assets, time), oldest bar first; NaN: the asset is not there
                at that bar
            groups: a label for each asset, shape (assets) or (assets, time), such as its industry; each group has its
                own ranks, mean and deviation, and an intercept of its own beside factors; a negative label: in no
                group, and NaN in the answer
            ddof: the variance is the sum of squares divided by n - ddof: 0 population, 1 sample

        Returns:
            zscore: (value - mean) / standard deviation, NaN where that is 0 or unknown; of the shape and dtype of
                values
        """
        fields = given(values=values, groups=groups, ddof=ddof)
        return typed(CrossZscoreResult, self.run("cross_zscore", params=fields, **options))

    def winsorise(
        self,
        values: Numbers,
        *,
        groups: Numbers | None = None,
        lower: float = 0.01,
        upper: float = 0.99,
        **options: Unpack[RunOptions],
    ) -> WinsoriseResult:
        """Clip each asset to two quantiles of all assets, or its group, at each bar.

        Args:
            values: a number for each asset and bar, shape (assets, time), oldest bar first; NaN: the asset is not there
                at that bar
            groups: a label for each asset, shape (assets) or (assets, time), such as its industry; each group has its
                own ranks, mean and deviation, and an intercept of its own beside factors; a negative label: in no
                group, and NaN in the answer
            lower: quantile below which numbers are raised to it; 0.0 to 1.0
            upper: quantile above which numbers are lowered to it; 0.0 to 1.0

        Returns:
            winsorised: the clipped values; of the shape and dtype of values
        """
        fields = given(values=values, groups=groups, lower=lower, upper=upper)
        return typed(WinsoriseResult, self.run("winsorise", params=fields, **options))

    def neutralise(
        self,
        values: Numbers,
        *,
        factors: Numbers | None = None,
        weights: Numbers | None = None,
        groups: Numbers | None = None,
        intercept: bool = True,
        **options: Unpack[RunOptions],
    ) -> NeutraliseResult:
        """What a mean, group means or a regression on factors leave of each asset at each bar: demeaned or neutral
        values.

        Args:
            values: a number for each asset and bar, shape (assets, time), oldest bar first; NaN: the asset is not there
                at that bar
            factors: exposures, shape (factors, assets) or (factors, assets, time), of the dtype of values; an asset
                with a NaN is left out of the bar
            weights: weights of the squares, 0 or more, shape (assets) or (assets, time), of the dtype of values; an
                asset with weight 0 has a residual and no influence, one with a NaN is left out
            groups: a label for each asset, shape (assets) or (assets, time), such as its industry; each group has its
                own ranks, mean and deviation, and an intercept of its own beside factors; a negative label: in no
                group, and NaN in the answer
            intercept: remove the mean too: of all assets, or of each group. false: factors alone, through the origin

        Returns:
            residual: residuals of the least-squares regression; of the shape and dtype of values
            used: how many factors the regression of each bar used, shape (time), int32; fewer than were given where
                some are combinations of others
        """
        fields = given(values=values, factors=factors, weights=weights, groups=groups, intercept=intercept)
        return typed(NeutraliseResult, self.run("neutralise", params=fields, **options))

    def black_scholes(
        self,
        *,
        spot: Numbers | float | None = None,
        forward: Numbers | float | None = None,
        strike: Numbers | float | None = None,
        rate: Numbers | float | None = None,
        dividend: Numbers | float | None = None,
        maturity: Numbers | float | None = None,
        volatility: Numbers | float | None = None,
        is_call: Numbers | None = None,
        option: Literal["call", "put"] | None = None,
        model: Literal["black_scholes_merton", "black76", "bachelier"] = "black_scholes_merton",
        per: Literal["unit", "market"] = "unit",
        **options: Unpack[RunOptions],
    ) -> BlackScholesResult:
        """Prices and Greeks of European options by Black-Scholes-Merton, Black 76 or Bachelier.

        Args:
            spot: price of the asset today, in black_scholes_merton; an array, or one number for all; arrays are
                broadcast as NumPy does; NaN where unknown
            forward: forward price of the asset at expiry, in the other models; an array, or one number for all; arrays
                are broadcast as NumPy does; NaN where unknown
            strike: strike, in the currency of the price; an array, or one number for all; arrays are broadcast as NumPy
                does; NaN where unknown
            rate: risk-free rate, continuously compounded, for a year; an array, or one number for all; arrays are
                broadcast as NumPy does; NaN where unknown
            dividend: dividend yield, continuously compounded, for a year, in black_scholes_merton; an array, or one
                number for all; arrays are broadcast as NumPy does; NaN where unknown
            maturity: years until expiry; an array, or one number for all; arrays are broadcast as NumPy does; NaN where
                unknown
            volatility: per square root of a year: 0.2 is 20 %; in bachelier in the currency of the price, such as 1.5;
                an array, or one number for all; arrays are broadcast as NumPy does; NaN where unknown
            is_call: 1 for a call, 0 for a put, broadcast with the other arrays; not beside option
            option: what all options are; else the input is_call says it of each
            model: black_scholes_merton: lognormal, of spot and dividend. black76: lognormal, of forward. bachelier:
                normal, of forward; forward and strike may be negative.
            per: unit: vega for 1.00 of volatility, rho for 1.00 of rate, theta for a year. market: vega and rho for
                0.01, theta for a day of 365.

        Returns:
            price: value today; of the shape that the arrays have together, or (1), as all outputs; NaN where an input
                is NaN or out of range
            delta: change of the price for 1 of the spot, or of the forward
            gamma: change of delta for 1 of the spot, or of the forward; infinite at its kink
            vega: change of the price for 1.00 of volatility; with per: market for 0.01
            theta: change of the price with time: in a year, with per: market in a day of 365
            rho: change of the price for 1.00 of the rate, the spot or forward the same; per: market for 0.01
        """
        fields = given(
            spot=spot,
            forward=forward,
            strike=strike,
            rate=rate,
            dividend=dividend,
            maturity=maturity,
            volatility=volatility,
            is_call=is_call,
            option=option,
            model=model,
            per=per,
        )
        return typed(BlackScholesResult, self.run("black_scholes", params=fields, **options))

    def implied_volatility(
        self,
        *,
        spot: Numbers | float | None = None,
        forward: Numbers | float | None = None,
        strike: Numbers | float | None = None,
        rate: Numbers | float | None = None,
        dividend: Numbers | float | None = None,
        maturity: Numbers | float | None = None,
        price: Numbers | float | None = None,
        is_call: Numbers | None = None,
        option: Literal["call", "put"] | None = None,
        model: Literal["black_scholes_merton", "black76", "bachelier"] = "black_scholes_merton",
        **options: Unpack[RunOptions],
    ) -> ImpliedVolatilityResult:
        """Volatilities that European options' prices imply under Black-Scholes-Merton, Black 76 or Bachelier.

        Args:
            spot: price of the asset today, in black_scholes_merton; an array, or one number for all; arrays are
                broadcast as NumPy does; NaN where unknown
            forward: forward price of the asset at expiry, in the other models; an array, or one number for all; arrays
                are broadcast as NumPy does; NaN where unknown
            strike: strike, in the currency of the price; an array, or one number for all; arrays are broadcast as NumPy
                does; NaN where unknown
            rate: risk-free rate, continuously compounded, for a year; an array, or one number for all; arrays are
                broadcast as NumPy does; NaN where unknown
            dividend: dividend yield, continuously compounded, for a year, in black_scholes_merton; an array, or one
                number for all; arrays are broadcast as NumPy does; NaN where unknown
            maturity: years until expiry; an array, or one number for all; arrays are broadcast as NumPy does; NaN where
                unknown
            price: price of the option today; an array, or one number for all; arrays are broadcast as NumPy does; NaN
                where unknown
            is_call: 1 for a call, 0 for a put, broadcast with the other arrays; not beside option
            option: what all options are; else the input is_call says it of each
            model: black_scholes_merton: lognormal, of spot and dividend. black76: lognormal, of forward. bachelier:
                normal, of forward; forward and strike may be negative.

        Returns:
            volatility: per square root of a year, in bachelier in the currency of the price; NaN where status is not 0;
                of the shape that the arrays have together, or (1)
            status: uint8, of the same shape. 0: found. 1: the price is below the intrinsic value. 2: it is at or above
                the most that any volatility gives. 3: it says nothing of volatility, as without time value. 4: a number
                is NaN or out of range.
        """
        fields = given(
            spot=spot,
            forward=forward,
            strike=strike,
            rate=rate,
            dividend=dividend,
            maturity=maturity,
            price=price,
            is_call=is_call,
            option=option,
            model=model,
        )
        return typed(ImpliedVolatilityResult, self.run("implied_volatility", params=fields, **options))

    def american_option(
        self,
        *,
        spot: Numbers | float | None = None,
        forward: Numbers | float | None = None,
        strike: Numbers | float | None = None,
        rate: Numbers | float | None = None,
        dividend: Numbers | float | None = None,
        maturity: Numbers | float | None = None,
        volatility: Numbers | float | None = None,
        is_call: Numbers | None = None,
        option: Literal["call", "put"] | None = None,
        model: Literal["black_scholes_merton", "black76"] = "black_scholes_merton",
        per: Literal["unit", "market"] = "unit",
        accuracy: Literal["fast", "accurate", "high"] = "accurate",
        **options: Unpack[RunOptions],
    ) -> AmericanOptionResult:
        """Prices, Greeks and critical prices of American options by Black-Scholes-Merton or Black 76.

        Args:
            spot: price of the asset today, in black_scholes_merton; an array, or one number for all; arrays are
                broadcast as NumPy does; NaN where unknown
            forward: forward price of the asset at expiry, in the other models; an array, or one number for all; arrays
                are broadcast as NumPy does; NaN where unknown
            strike: strike, in the currency of the price; an array, or one number for all; arrays are broadcast as NumPy
                does; NaN where unknown
            rate: risk-free rate, continuously compounded, for a year; an array, or one number for all; arrays are
                broadcast as NumPy does; NaN where unknown
            dividend: dividend yield, continuously compounded, for a year, in black_scholes_merton; an array, or one
                number for all; arrays are broadcast as NumPy does; NaN where unknown
            maturity: years until expiry; an array, or one number for all; arrays are broadcast as NumPy does; NaN where
                unknown
            volatility: per square root of a year: 0.2 is 20 %; in bachelier in the currency of the price, such as 1.5;
                an array, or one number for all; arrays are broadcast as NumPy does; NaN where unknown
            is_call: 1 for a call, 0 for a put, broadcast with the other arrays; not beside option
            option: what all options are; else the input is_call says it of each
            model: black_scholes_merton: lognormal, of spot and dividend. black76: lognormal, of forward.
            per: unit: vega for 1.00 of volatility, rho for 1.00 of rate, theta for a year. market: vega and rho for
                0.01, theta for a day of 365.
            accuracy: size of the scheme. Prices of strike 100 in everyday markets are good to 1e-3 (fast), 1e-4
                (accurate) or 5e-6 (high); the family's README has the errors of others, up to the corners of the range.
                Each takes some three times as long as the one before.

        Returns:
            price: value today; of the shape that the arrays have together, or (1), as all outputs; NaN where status is
                4 or 5
            delta: change of the price for 1 of the spot, or of the forward; -1 or 1 where exercised now
            gamma: change of delta for 1 of the spot, or of the forward; 0 where exercised now
            vega: change of the price for 1.00 of volatility; with per: market for 0.01
            theta: change of the price with time: in a year, with per: market in a day of 365
            rho: change of the price for 1.00 of the rate, the spot or forward the same; per: market for 0.01
            critical_price: spot or forward at and below which a put, or at and above which a call, is exercised today;
                0 or infinite where none is
            status: uint8, of the same shape. 0: worth more alive. 1: exercised now. 2: never exercised before expiry,
                so European. 3: computed outside the range for which errors are stated. 4: a number is NaN or out of
                range. 5: two boundaries, as of a put with dividend < rate < 0.
            scheme: object: accuracy; the sizes nodes, points, steps and last; rms_error and max_error of prices of
                strike 100 in everyday markets
        """
        fields = given(
            spot=spot,
            forward=forward,
            strike=strike,
            rate=rate,
            dividend=dividend,
            maturity=maturity,
            volatility=volatility,
            is_call=is_call,
            option=option,
            model=model,
            per=per,
            accuracy=accuracy,
        )
        return typed(AmericanOptionResult, self.run("american_option", params=fields, **options))

    def covariance(
        self,
        returns: Numbers,
        *,
        method: Literal["sample", "ewma", "ledoit_wolf"] = "sample",
        decay: float | None = None,
        demean: bool = True,
        periods_per_year: float = 1.0,
        eigenvalues: bool = False,
        components: int = 0,
        **options: Unpack[RunOptions],
    ) -> CovarianceResult:
        """Covariance, correlation and means of returns: sample, exponentially weighted, or shrunk (Ledoit-Wolf); its
        principal components.

        Args:
            returns: simple returns, shape (assets, time) or (batch, assets, time), oldest first
            method: sample: divided by time - 1. ewma: weights that fall by the factor decay each step back in time.
                ledoit_wolf: sample, shrunk towards equal correlations (Ledoit and Wolf 2004).
            decay: of ewma: weight of a time over that of the next; null: 0.94
            demean: subtract each asset's mean. false: the mean is taken as 0, and nothing is deducted from time.
            periods_per_year: periods of the returns in a year: means and covariances times this
            eigenvalues: also compute all eigenvalues of the covariance matrix
            components: also compute so many principal components of the covariance, at most as many as there are
                assets; 0 to 2,048

        Returns:
            covariance: per year, shape (assets, assets) or (batch, assets, assets), float64
            correlation: of the same shape; NaN beside an asset whose variance is 0
            means: mean of each asset's returns per year, shape (assets) or (batch, assets); ewma: weighted
            shrinkage: ledoit_wolf: the weight of the equal correlations, from 0 to 1; else 0; (1) or (batch)
            eigenvalues: of the covariance, ascending, shape (assets) or (batch, assets); (..., 0) if not asked
            explained_variance: the variance along each component, which is its eigenvalue, falling; shape (components)
                or (batch, components)
            explained_variance_ratio: explained_variance as a part of the sum of all variances; NaN where nothing varies
            components: the principal components, eigenvectors of length 1 whose largest element is positive, shape
                (components, assets) or (batch, components, assets)
            smallest_eigenvalue: of the covariance, shape (1) or (batch); NaN without `eigenvalues` or `components`
            condition_number: the greatest eigenvalue over the smallest, infinite where that is 0 but for rounding;
                shape (1) or (batch); NaN without `eigenvalues` or `components`
        """
        fields = given(
            returns=returns,
            method=method,
            decay=decay,
            demean=demean,
            periods_per_year=periods_per_year,
            eigenvalues=eigenvalues,
            components=components,
        )
        return typed(CovarianceResult, self.run("covariance", params=fields, **options))

    def risk_parity(
        self,
        covariance: Numbers,
        *,
        budgets: Numbers | None = None,
        tolerance: float = 1e-10,
        sweeps: int = 1000,
        spectrum: bool = False,
        **options: Unpack[RunOptions],
    ) -> RiskParityResult:
        """Long-only weights whose assets have given parts of the portfolio's risk: equal ones, or budgets.

        Args:
            covariance: symmetric covariance matrix of simple returns, shape (assets, assets) or (batch, assets, assets)
            budgets: each asset's part of the risk, above 0, shape (assets); they are divided by their sum. Default:
                equal
            tolerance: stop once no asset's part of the risk is further than this from its budget, as a part of all
                risk; 1e-13 to 0.01
            sweeps: the most sweeps over all assets; more are refused, not cut short; 1 to 100,000
            spectrum: also compute the smallest eigenvalue and the condition number of the covariance, which takes
                longer than the weights

        Returns:
            weights: above 0, with sum 1, shape (assets) or (batch, assets)
            risk_contributions: each asset's part of the risk, with sum 1, of the same shape
            risk: standard deviation of the portfolio's return, shape (1) or (batch)
            iterations: sweeps over all assets, int32, shape (1) or (batch)
            residual: the greatest distance of a risk contribution from its budget, shape (1) or (batch)
            smallest_eigenvalue: of the covariance, shape (1) or (batch); NaN without `spectrum`
            condition_number: the greatest eigenvalue over the smallest, infinite where that is 0 but for rounding;
                shape (1) or (batch); NaN without `spectrum`
        """
        fields = given(covariance=covariance, budgets=budgets, tolerance=tolerance, sweeps=sweeps, spectrum=spectrum)
        return typed(RiskParityResult, self.run("risk_parity", params=fields, **options))

    def frontier(
        self,
        means: Numbers,
        covariance: Numbers,
        *,
        lower: Numbers | None = None,
        upper: Numbers | None = None,
        portfolio: Literal["minimum_variance", "maximum_sharpe", "target_mean", "target_risk"] = "minimum_variance",
        target: float | None = None,
        rf: float = 0.0,
        periods_per_year: float = 1.0,
        **options: Unpack[RunOptions],
    ) -> FrontierResult:
        """The efficient frontier with bounds, by the critical line: all corner portfolios, and one that is chosen.

        Args:
            means: mean return of each asset, shape (assets)
            covariance: symmetric covariance matrix of the returns, shape (assets, assets)
            lower: lower bound of each asset's weight, shape (assets), or (1) for all; default 0
            upper: upper bound of each asset's weight, shape (assets), or (1) for all; default 1
            portfolio: which portfolio of the frontier the weights are of. maximum_sharpe: the greatest (mean - rf) /
                risk. target_mean, target_risk: the one with the mean or risk `target`.
            target: mean or risk of a target portfolio, per year
            rf: risk-free return per year, of Sharpe ratios
            periods_per_year: means and covariances are of a period: they are taken times this

        Returns:
            weights: of the chosen portfolio, with sum 1, shape (assets)
            bounds: -1 for an asset at its lower bound, 1 at its upper one, 0 between, int32, shape (assets)
            risk_contributions: each asset's part of the variance, with sum 1, shape (assets)
            mean: of the chosen portfolio per year
            risk: its standard deviation per year
            sharpe: (mean - rf) / risk
            corner_weights: the corner portfolios by falling mean, shape (corners, assets): every efficient portfolio
                lies between two neighbours
            corner_means: per year, shape (corners)
            corner_risks: per year, shape (corners)
            corner_lambdas: the least tolerance of risk of which the corner is the answer, shape (corners)
            steps: of the critical line: assets that left or reached a bound
            violation: of the conditions of optimality, the greatest, as a part of the mean variance
            ties: groups of assets with equal means, which are broken by the index
            smallest_eigenvalue: of the covariance per year
            condition_number: the greatest eigenvalue over the smallest
        """
        fields = given(
            means=means,
            covariance=covariance,
            lower=lower,
            upper=upper,
            portfolio=portfolio,
            target=target,
            rf=rf,
            periods_per_year=periods_per_year,
        )
        return typed(FrontierResult, self.run("frontier", params=fields, **options))

    def hrp(
        self,
        covariance: Numbers,
        *,
        distance: Literal["of_distances", "of_correlations"] = "of_distances",
        linkage: Literal["single", "complete", "average"] = "single",
        spectrum: bool = False,
        **options: Unpack[RunOptions],
    ) -> HrpResult:
        """Hierarchical risk parity: weights by halves of a tree of clusters, with no inverse of the covariance.

        Args:
            covariance: symmetric covariance matrix of simple returns, shape (assets, assets) or (batch, assets, assets)
            distance: of_correlations: sqrt((1 - correlation) / 2) of two assets. of_distances: the Euclidean distance
                of their rows of those distances, as in Lopez de Prado 2016.
            linkage: distance of two clusters: of the nearest two assets, the farthest, or the mean
            spectrum: also compute the smallest eigenvalue and the condition number of the covariance, which takes
                longer than the weights

        Returns:
            weights: above 0, with sum 1, shape (assets) or (batch, assets)
            risk_contributions: each asset's part of the variance, with sum 1, of the same shape
            risk: standard deviation of the portfolio's return, shape (1) or (batch)
            order: the assets from left to right under the tree, int32, of the weights' shape
            merges: the tree in SciPy's form, shape (assets - 1, 4) or (batch, assets - 1, 4): two clusters, their
                distance and how many assets they have; row r makes cluster assets + r
            smallest_eigenvalue: of the covariance, shape (1) or (batch); NaN without `spectrum`
            condition_number: the greatest eigenvalue over the smallest, infinite where that is 0 but for rounding;
                shape (1) or (batch); NaN without `spectrum`
        """
        fields = given(covariance=covariance, distance=distance, linkage=linkage, spectrum=spectrum)
        return typed(HrpResult, self.run("hrp", params=fields, **options))

    def backtest_sweep(
        self,
        close: Numbers,
        *,
        open: Numbers | None = None,
        high: Numbers | None = None,
        low: Numbers | None = None,
        volume: Numbers | None = None,
        benchmark: Numbers | None = None,
        entries: Numbers | None = None,
        short_entries: Numbers | None = None,
        exits: Numbers | None = None,
        short_exits: Numbers | None = None,
        target: Numbers | None = None,
        a: Numbers | None = None,
        b: Numbers | None = None,
        c: Numbers | None = None,
        d: Numbers | None = None,
        e: Numbers | None = None,
        f: Numbers | None = None,
        g: Numbers | None = None,
        h: Numbers | None = None,
        strategy: Mapping[str, Any] | None = None,
        fill: Literal["next_open", "next_close", "same_close"] = "next_open",
        fee: float = 0.0,
        fee_of: Literal["traded", "spent"] = "traded",
        fixed_fee: float = 0.0,
        slippage: float = 0.0,
        borrow: float = 0.0,
        size: float | str | Mapping[str, Any] = 1.0,
        size_in: Literal["equity", "units"] = "equity",
        whole_units: bool = False,
        stop_loss: float | str | Mapping[str, Any] | None = None,
        trailing_stop: float | str | Mapping[str, Any] | None = None,
        take_profit: float | str | Mapping[str, Any] | None = None,
        stops_from: Literal["entry", "next_bar"] = "entry",
        if_both: Literal["stop", "target"] = "stop",
        target_fill: Literal["level", "open_if_better"] = "level",
        opposite: Literal["reverse", "exit"] = "reverse",
        last_bar: Literal["marked", "sold"] = "marked",
        capital: float = 100000.0,
        periods_per_year: float = 252.0,
        benchmark_sharpe: float = 0.0,
        blocks: int = 1,
        flat_at_edges: bool = False,
        prefix_checks: int = 0,
        grid: Mapping[str, Any] | None = None,
        sets: Mapping[str, Any] | None = None,
        where: str = "",
        **options: Unpack[RunOptions],
    ) -> BacktestSweepResult:
        """Metrics of a strategy for each set of parameters and each asset, with fees, stops and targets.

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices; a bar that lacks a price fills no order, and its position is kept, shape (time) or
                (assets, time), oldest first
            volume: any series that the strategy reads, shape (time) or (assets, time), oldest first
            benchmark: any series that the strategy reads, shape (time) or (assets, time), oldest first
            entries: signals: not 0 to enter long, shape (time) or (assets, time), oldest first
            short_entries: not 0 to enter short, shape (time) or (assets, time), oldest first
            exits: not 0 to leave long, shape (time) or (assets, time), oldest first
            short_exits: not 0 to leave short, shape (time) or (assets, time), oldest first
            target: in place of all four: above 0 long, below 0 short, 0 none, NaN no change, shape (time) or (assets,
                time), oldest first
            a: any series that the strategy reads, shape (time) or (assets, time), oldest first
            b: any series that the strategy reads, shape (time) or (assets, time), oldest first
            c: any series that the strategy reads, shape (time) or (assets, time), oldest first
            d: any series that the strategy reads, shape (time) or (assets, time), oldest first
            e: any series that the strategy reads, shape (time) or (assets, time), oldest first
            f: any series that the strategy reads, shape (time) or (assets, time), oldest first
            g: any series that the strategy reads, shape (time) or (assets, time), oldest first
            h: any series that the strategy reads, shape (time) or (assets, time), oldest first
            strategy: a graph; without it the inputs entries, exits and so on, or target, are the signals
            fill: where an order fills that a signal at a bar's close makes. same_close is optimistic: the price that
                gives the signal can hardly be had
            fee: fraction of each side's value
            fee_of: what an entry's fee is a fraction of: the value that is traded, or that and the fee together
            fixed_fee: of each side, in money; 0 to 1,000,000,000,000.0
            slippage: fraction of the price, against you
            borrow: of a short position's value, per year; 0 to 100
            size: of a position: a number above 0, {"param": name}, or an expression, read at the signal's bar
            size_in: whether `size` is a fraction of the equity at the entry, or units
            whole_units: round units down to whole ones
            stop_loss: a fraction of the entry's price, {"param": name}, or an expression: a distance in price
            trailing_stop: as stop_loss, but from the best high (short: low) since the entry, up to the bar before
            take_profit: a fraction of the entry's price, {"param": name}, or an expression: a distance in price
            stops_from: whether stops and targets hold within the bar at whose open a position begins
            if_both: which of the two fills where a bar reaches both, and its open neither
            target_fill: the price of a target that the bar's open is already beyond
            opposite: whether an entry against the position turns it, or only ends it
            last_bar: whether a position is marked at the last close, or sold there
            capital: 1e-06 to 1,000,000,000,000,000.0
            periods_per_year: bars of a year; 1e-06 to 1,000,000,000.0
            benchmark_sharpe: Sharpe ratio of a year that probabilistic_sharpe compares with; -1,000.0 to 1,000.0
            blocks: of bars, for walk-forward and PBO; 1 to 64
            flat_at_edges: sell at the last close of each block, so that blocks do not depend on each other. Signals at
                its last bar, and a target that lasts, fill in the next block
            prefix_checks: cuts at which the job shows that its graph does not look ahead: bars from the cut on are
                replaced, and the signals before it compared. Of given series it shows nothing; 0 to 20
            grid: values of each parameter, all combined with all
            sets: in place of a grid: of each parameter its value in each set
            where: what sets must meet: "fast < slow and slow < 200"

        Returns:
            metrics: total_return, cagr, volatility, sharpe, sortino, calmar, max_drawdown, drawdown_bars, trades,
                win_rate, profit_factor, exposure, turnover, costs, skewness, kurtosis, probabilistic_sharpe,
                final_equity, ruined; shape (metrics, sets) or (metrics, sets, assets), float64
            block_sums: sums of the returns' first four powers in each block, for `overfitting`; shape (4, sets, blocks)
                or (4, sets, assets, blocks)
            sets: the value of each parameter in each set, shape (parameters, sets), float64
            prefix_differences: of each prefix check how many runs had other signals before the cut; 0 shows that the
                graph does not look ahead, and nothing of series that the request gives; shape (checks), int64
            metric_names: the names of the metrics
            parameter_names: the names of the parameters, in order
            rules: every rule that orders went by; `optimistic` where they fill at the price that gives the signal;
                whether signals can look ahead; the bars of the prefix checks
        """
        fields = given(
            close=close,
            open=open,
            high=high,
            low=low,
            volume=volume,
            benchmark=benchmark,
            entries=entries,
            short_entries=short_entries,
            exits=exits,
            short_exits=short_exits,
            target=target,
            a=a,
            b=b,
            c=c,
            d=d,
            e=e,
            f=f,
            g=g,
            h=h,
            strategy=strategy,
            fill=fill,
            fee=fee,
            fee_of=fee_of,
            fixed_fee=fixed_fee,
            slippage=slippage,
            borrow=borrow,
            size=size,
            size_in=size_in,
            whole_units=whole_units,
            stop_loss=stop_loss,
            trailing_stop=trailing_stop,
            take_profit=take_profit,
            stops_from=stops_from,
            if_both=if_both,
            target_fill=target_fill,
            opposite=opposite,
            last_bar=last_bar,
            capital=capital,
            periods_per_year=periods_per_year,
            benchmark_sharpe=benchmark_sharpe,
            blocks=blocks,
            flat_at_edges=flat_at_edges,
            prefix_checks=prefix_checks,
            grid=grid,
            sets=sets,
            where=where,
        )
        return typed(BacktestSweepResult, self.run("backtest_sweep", params=fields, **options))

    def backtest(
        self,
        close: Numbers,
        *,
        open: Numbers | None = None,
        high: Numbers | None = None,
        low: Numbers | None = None,
        volume: Numbers | None = None,
        benchmark: Numbers | None = None,
        entries: Numbers | None = None,
        short_entries: Numbers | None = None,
        exits: Numbers | None = None,
        short_exits: Numbers | None = None,
        target: Numbers | None = None,
        a: Numbers | None = None,
        b: Numbers | None = None,
        c: Numbers | None = None,
        d: Numbers | None = None,
        e: Numbers | None = None,
        f: Numbers | None = None,
        g: Numbers | None = None,
        h: Numbers | None = None,
        strategy: Mapping[str, Any] | None = None,
        fill: Literal["next_open", "next_close", "same_close"] = "next_open",
        fee: float = 0.0,
        fee_of: Literal["traded", "spent"] = "traded",
        fixed_fee: float = 0.0,
        slippage: float = 0.0,
        borrow: float = 0.0,
        size: float | str | Mapping[str, Any] = 1.0,
        size_in: Literal["equity", "units"] = "equity",
        whole_units: bool = False,
        stop_loss: float | str | Mapping[str, Any] | None = None,
        trailing_stop: float | str | Mapping[str, Any] | None = None,
        take_profit: float | str | Mapping[str, Any] | None = None,
        stops_from: Literal["entry", "next_bar"] = "entry",
        if_both: Literal["stop", "target"] = "stop",
        target_fill: Literal["level", "open_if_better"] = "level",
        opposite: Literal["reverse", "exit"] = "reverse",
        last_bar: Literal["marked", "sold"] = "marked",
        capital: float = 100000.0,
        periods_per_year: float = 252.0,
        benchmark_sharpe: float = 0.0,
        blocks: int = 1,
        flat_at_edges: bool = False,
        prefix_checks: int = 0,
        values: Mapping[str, Any] | None = None,
        weights: Sequence[float] = (),
        **options: Unpack[RunOptions],
    ) -> BacktestResult:
        """Equity, position and trades of a strategy with one set of parameters: the curve behind a sweep's metrics.

        Args:
            open: opening prices, shape (time) or (assets, time), oldest first
            high: highest prices of the bars, shape (time) or (assets, time), oldest first
            low: lowest prices of the bars, shape (time) or (assets, time), oldest first
            close: closing prices; a bar that lacks a price fills no order, and its position is kept, shape (time) or
                (assets, time), oldest first
            volume: any series that the strategy reads, shape (time) or (assets, time), oldest first
            benchmark: any series that the strategy reads, shape (time) or (assets, time), oldest first
            entries: signals: not 0 to enter long, shape (time) or (assets, time), oldest first
            short_entries: not 0 to enter short, shape (time) or (assets, time), oldest first
            exits: not 0 to leave long, shape (time) or (assets, time), oldest first
            short_exits: not 0 to leave short, shape (time) or (assets, time), oldest first
            target: in place of all four: above 0 long, below 0 short, 0 none, NaN no change, shape (time) or (assets,
                time), oldest first
            a: any series that the strategy reads, shape (time) or (assets, time), oldest first
            b: any series that the strategy reads, shape (time) or (assets, time), oldest first
            c: any series that the strategy reads, shape (time) or (assets, time), oldest first
            d: any series that the strategy reads, shape (time) or (assets, time), oldest first
            e: any series that the strategy reads, shape (time) or (assets, time), oldest first
            f: any series that the strategy reads, shape (time) or (assets, time), oldest first
            g: any series that the strategy reads, shape (time) or (assets, time), oldest first
            h: any series that the strategy reads, shape (time) or (assets, time), oldest first
            strategy: a graph; without it the inputs entries, exits and so on, or target, are the signals
            fill: where an order fills that a signal at a bar's close makes. same_close is optimistic: the price that
                gives the signal can hardly be had
            fee: fraction of each side's value
            fee_of: what an entry's fee is a fraction of: the value that is traded, or that and the fee together
            fixed_fee: of each side, in money; 0 to 1,000,000,000,000.0
            slippage: fraction of the price, against you
            borrow: of a short position's value, per year; 0 to 100
            size: of a position: a number above 0, {"param": name}, or an expression, read at the signal's bar
            size_in: whether `size` is a fraction of the equity at the entry, or units
            whole_units: round units down to whole ones
            stop_loss: a fraction of the entry's price, {"param": name}, or an expression: a distance in price
            trailing_stop: as stop_loss, but from the best high (short: low) since the entry, up to the bar before
            take_profit: a fraction of the entry's price, {"param": name}, or an expression: a distance in price
            stops_from: whether stops and targets hold within the bar at whose open a position begins
            if_both: which of the two fills where a bar reaches both, and its open neither
            target_fill: the price of a target that the bar's open is already beyond
            opposite: whether an entry against the position turns it, or only ends it
            last_bar: whether a position is marked at the last close, or sold there
            capital: 1e-06 to 1,000,000,000,000,000.0
            periods_per_year: bars of a year; 1e-06 to 1,000,000,000.0
            benchmark_sharpe: Sharpe ratio of a year that probabilistic_sharpe compares with; -1,000.0 to 1,000.0
            blocks: of bars, for walk-forward and PBO; 1 to 64
            flat_at_edges: sell at the last close of each block, so that blocks do not depend on each other. Signals at
                its last bar, and a target that lasts, fill in the next block
            prefix_checks: cuts at which the job shows that its graph does not look ahead: bars from the cut on are
                replaced, and the signals before it compared. Of given series it shows nothing; 0 to 20
            values: the value of each parameter
            weights: parts of the capital in each asset, for portfolio_returns; empty: equal parts

        Returns:
            equity: equity at each close, of the shape of close, float64
            position: units at each close, negative if short, of the shape of close, float64
            trades: shape (trades, 9), float64: asset, entry_bar, exit_bar, side, units, entry_price, exit_price, gain,
                reason; reasons are numbered signal, stop, target, end, ruin, open; an open trade's exit_bar is -1, its
                exit_price the last close
            metrics: total_return, cagr, volatility, sharpe, sortino, calmar, max_drawdown, drawdown_bars, trades,
                win_rate, profit_factor, exposure, turnover, costs, skewness, kurtosis, probabilistic_sharpe,
                final_equity, ruined; shape (metrics) or (metrics, assets), float64
            portfolio_returns: returns of a portfolio that gives each asset's account its part of the capital, and moves
                no money between them afterwards, shape (time), float64
            prefix_differences: of each prefix check how many runs had other signals before the cut; 0 shows that the
                graph does not look ahead, and nothing of series that the request gives; shape (checks), int64
            metric_names: the names of the metrics
            parameter_names: the names of the parameters, in order
            rules: every rule that orders went by; `optimistic` where they fill at the price that gives the signal;
                whether signals can look ahead; the bars of the prefix checks
            trade_fields: the names of a trade's columns
            reasons: why a trade ended, by its number
        """
        fields = given(
            close=close,
            open=open,
            high=high,
            low=low,
            volume=volume,
            benchmark=benchmark,
            entries=entries,
            short_entries=short_entries,
            exits=exits,
            short_exits=short_exits,
            target=target,
            a=a,
            b=b,
            c=c,
            d=d,
            e=e,
            f=f,
            g=g,
            h=h,
            strategy=strategy,
            fill=fill,
            fee=fee,
            fee_of=fee_of,
            fixed_fee=fixed_fee,
            slippage=slippage,
            borrow=borrow,
            size=size,
            size_in=size_in,
            whole_units=whole_units,
            stop_loss=stop_loss,
            trailing_stop=trailing_stop,
            take_profit=take_profit,
            stops_from=stops_from,
            if_both=if_both,
            target_fill=target_fill,
            opposite=opposite,
            last_bar=last_bar,
            capital=capital,
            periods_per_year=periods_per_year,
            benchmark_sharpe=benchmark_sharpe,
            blocks=blocks,
            flat_at_edges=flat_at_edges,
            prefix_checks=prefix_checks,
            values=values,
            weights=weights,
        )
        return typed(BacktestResult, self.run("backtest", params=fields, **options))

    def overfitting(
        self,
        *,
        returns: Numbers | None = None,
        block_sums: Numbers | None = None,
        blocks: int = 16,
        bars: int = 0,
        prior_trials: int = 0,
        trials: int | None = None,
        train_blocks: int = 0,
        periods_per_year: float = 252.0,
        **options: Unpack[RunOptions],
    ) -> OverfittingResult:
        """How much of the best set's result is luck: deflated Sharpe ratio, PBO, walk-forward.

        Args:
            returns: of each set at each bar, shape (sets, bars), oldest first
            block_sums: what backtest_sweep gives of one asset, shape (4, sets, blocks)
            blocks: of bars, that are trained on in every half (CSCV); 2 to 20
            bars: with `block_sums`: the bars that they were made of; 0 to 1,000,000,000
            prior_trials: sets that were tried before, which deflate the Sharpe ratio too; 0 to 1,000,000,000,000
            trials: number of independent trials that deflate the Sharpe ratio; null: the sets and prior_trials
            train_blocks: blocks on which walk-forward chooses; 0: all before the tested one; 0 to 19
            periods_per_year: bars of a year; 1e-06 to 1,000,000,000.0

        Returns:
            best: the set with the highest Sharpe ratio, counted from 0
            sharpe: its Sharpe ratio of a year
            probabilistic_sharpe: the probability that its true Sharpe ratio is above 0
            deflated_sharpe: the probability that it is above what the best of all trials has by luck
            expected_best_sharpe: that Sharpe ratio of luck, of a year
            trials: how many independent ones it was deflated by: as given, or sets and prior trials, which are too
                many, as sets are alike
            pbo: probability of backtest overfitting: how often the best set in half of the blocks is not better than
                the median in the other half
            splits: how many halves were tried
            logits: of each split the logit of the rank that the best set of one half has in the other
            chosen: of each split its best set, int64
            walk_forward: for each tested block: block, chosen set, Sharpe ratio in training and in the test; shape
                (blocks, 4), float64
            walk_forward_sharpe: Sharpe ratio of the tested blocks together, of a year
        """
        fields = given(
            returns=returns,
            block_sums=block_sums,
            blocks=blocks,
            bars=bars,
            prior_trials=prior_trials,
            trials=trials,
            train_blocks=train_blocks,
            periods_per_year=periods_per_year,
        )
        return typed(OverfittingResult, self.run("overfitting", params=fields, **options))

    def monte_carlo(
        self,
        *,
        payoff: Literal[
            "european",
            "asian_arithmetic",
            "asian_geometric",
            "barrier_up_out",
            "barrier_up_in",
            "barrier_down_out",
            "barrier_down_in",
            "cash_or_nothing",
            "asset_or_nothing",
            "lookback_fixed",
            "lookback_floating",
        ],
        option: Literal["call", "put"],
        spot: float,
        strike: float | None = None,
        rate: float = 0.0,
        dividend: float = 0.0,
        volatility: float,
        maturity: float,
        steps: int = 252,
        paths: int = 100000,
        include_spot: bool = False,
        barrier: float | None = None,
        monitoring: Literal["discrete", "continuous"] | None = None,
        rebate: float = 0.0,
        payout: float | None = None,
        extreme: float | None = None,
        control_variate: bool = True,
        sampling: Literal["pseudo", "antithetic", "sobol"] = "pseudo",
        greeks: bool = False,
        confidence: float = 0.95,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        **options: Unpack[RunOptions],
    ) -> MonteCarloResult:
        """Price of a European, Asian, barrier, digital or lookback option by simulated geometric Brownian motion, with
        its error

        Args:
            payoff: what is paid; Asian options average the fixings, barrier options knock in or out, digital options
                (cash_or_nothing, asset_or_nothing) pay all or nothing, lookback options the greatest or least price
            option: call pays price - strike, put strike - price, never below 0; digital: above or below the strike
            spot: price of the asset today; 1e-09 to 1,000,000,000,000.0
            strike: needed by every payoff but lookback_floating, whose strike is the extreme price
            rate: risk-free rate, continuously compounded; -10 to 10
            dividend: dividend yield, continuously compounded; -10 to 10
            volatility: per square root of a year: 0.2 is 20 %; 0, or at least 1e-9; 0 to 50
            maturity: years until expiry; 1e-09 to 1,000
            steps: equal time steps until expiry: fixings of an Asian option, dates at which a barrier or an extreme
                price is looked at; 1 to 10,000
            paths: 2 to 100,000,000
            include_spot: Asian: the price at time 0 counts as a first fixing
            barrier: level that knocks a barrier option in or out
            monitoring: barrier, lookback: looked at on the steps only, or at all times (default) by the Brownian bridge
            rebate: barrier: paid when an option is knocked out, or at expiry when it was never knocked in; 0 to
                1,000,000,000,000.0
            payout: cash_or_nothing: what is paid (default 1)
            extreme: lookback: the extreme price until today (default: the spot), the greatest for fixed calls and
                floating puts, the least for fixed puts and floating calls
            control_variate: asian_arithmetic: correct by the geometric average, whose price is known exactly
            sampling: pseudo-random paths; antithetic ones, in pairs of a path and its mirror image; or scrambled Sobol
                points by a Brownian bridge, where `paths` is 16 times a power of two, at least 4,096
            greeks: delta, vega, theta and rho by pathwise derivatives, with their errors; for payoffs without a jump,
                so not for barrier and digital ones
            confidence: level of the confidence interval; 0.5 to 0.999999
            quantiles: probabilities whose quantiles of the terminal price are wanted

        Returns:
            price: estimated present value
            standard_error: standard deviation of that estimate; 0 where all paths paid the same, no evidence where that
                was nothing
            confidence_interval: [low, high]: price -+ the standard error times the normal quantile, for sobol that of
                Student's t with 15 degrees of freedom
            confidence: level of the interval
            quantiles: [{probability, price}]: of the asset's simulated price at expiry
            quantile_resolution: greatest relative distance of a quantile from the simulated price of that rank (half a
                bin's width)
            control_variate: {name, closed_form, beta, beta_estimated, paying_paths, expected_paying_paths, plain_price,
                plain_standard_error, variance_reduction} where one was used; beta is 1, and not estimated, where fewer
                than 200 paths are expected to pay the control
            knocked_at_start: barrier payoffs: whether the spot is at or past the barrier; else null
            greeks: {delta, vega, theta, rho}, each {value, standard_error}, where they are wanted: per 1.00 of price
                and volatility, a year, 1.00 of rate; else null
            paths: paths simulated
            sampling: {method, samples, sobol_dimensions}: how many independent samples the standard error rests on,
                which are paths, pairs of paths or replicates; and how many of a path's dimensions are Sobol points',
                the others being pseudo-random
            paying_paths: paths whose payoff was positive (barrier at all times: whose expected payoff given its dates
                was)
            deciding_paths: paths over squared skewness: of k paths that pay the same where no other pays it is about k.
                Below 50 the standard error is not to be trusted
            warnings: sentences: why the price or its error is not to be trusted; empty if it is
            steps: time steps of each path
        """
        fields = given(
            payoff=payoff,
            option=option,
            spot=spot,
            strike=strike,
            rate=rate,
            dividend=dividend,
            volatility=volatility,
            maturity=maturity,
            steps=steps,
            paths=paths,
            include_spot=include_spot,
            barrier=barrier,
            monitoring=monitoring,
            rebate=rebate,
            payout=payout,
            extreme=extreme,
            control_variate=control_variate,
            sampling=sampling,
            greeks=greeks,
            confidence=confidence,
            quantiles=quantiles,
        )
        return typed(MonteCarloResult, self.run("monte_carlo", params=fields, **options))

    def basket_option(
        self,
        spot: Numbers,
        volatility: Numbers,
        *,
        correlation: Numbers | None = None,
        dividend: Numbers | None = None,
        weights: Numbers | None = None,
        payoff: Literal["weighted_sum", "best_of", "worst_of"],
        option: Literal["call", "put"],
        exercise: Literal["european", "american"] = "european",
        strike: float,
        rate: float = 0.0,
        maturity: float,
        steps: int | None = None,
        paths: int = 100000,
        policy_paths: int | None = None,
        control_variate: bool = True,
        confidence: float = 0.95,
        **options: Unpack[RunOptions],
    ) -> BasketOptionResult:
        """Price of a European or American option on the sum, best or worst of several assets, by simulated prices

        Args:
            spot: price of each asset today, shape (assets)
            volatility: of each asset, per square root of a year, shape (assets), or (1) for all
            correlation: of the log prices, shape (assets, assets): symmetric, with 1 on the diagonal, positive
                definite; may be left out for one asset
            dividend: yield of each asset, continuously compounded, shape (assets), or (1) for all; 0 if left out
            weights: factor of each price, shape (assets). If left out: 1 / assets for weighted_sum, else 1. Below 0:
                for a spread
            payoff: the value that is compared with the strike: the sum, the greatest or the least of weight * price
            option: call pays value - strike, put strike - value, never below 0
            exercise: european: at maturity. american: today, or on one of `steps` equally spaced dates (Bermudan)
            strike: 1e-09 to 1,000,000,000,000.0
            rate: risk-free rate, continuously compounded; -10 to 10
            maturity: years until expiry; 1e-09 to 1,000
            steps: american: dates of exercise until expiry, which is the last; 50
            paths: paths that the option is valued on; 2 to 100,000,000
            policy_paths: american: further paths, which the policy of exercise is fitted on; 100,000
            control_variate: for european weighted_sum with weights above 0, and no other: correct by the geometric
                average, whose price is known exactly
            confidence: level of the confidence interval; 0.5 to 0.999999

        Returns:
            price: estimated present value; american: of the fitted policy on paths it has not seen
            standard_error: standard deviation of that estimate; 0 where all paths paid the same, no evidence where that
                was nothing
            confidence_interval: [low, high]: price -+ the normal quantile times the standard error
            confidence: level of the interval
            control_variate: {name, closed_form, beta, beta_estimated, paying_paths, expected_paying_paths, plain_price,
                plain_standard_error, variance_reduction} where one was used, else null
            american: {policy_paths, basis, in_sample_price, in_sample_standard_error, payment_today, exercise_today,
                probability, dates}; null for european. in_sample_price is that on the policy's own paths;
                exercise_today whether payment_today is at least what waiting is worth; probability the share of paths
                that are exercised. dates has {time, probability, in_the_money} of each: years, the share of paths
                exercised on it, and how many of the policy's paths were in the money
            paths: paths that the option is valued on
            paying_paths: paths whose payment was positive
            deciding_paths: paths over squared skewness of the payments (with a control, less the control). Below 50 the
                standard error is not to be trusted
            warnings: sentences: why the price or its error is not to be trusted; empty if it is
        """
        fields = given(
            spot=spot,
            volatility=volatility,
            correlation=correlation,
            dividend=dividend,
            weights=weights,
            payoff=payoff,
            option=option,
            exercise=exercise,
            strike=strike,
            rate=rate,
            maturity=maturity,
            steps=steps,
            paths=paths,
            policy_paths=policy_paths,
            control_variate=control_variate,
            confidence=confidence,
        )
        return typed(BasketOptionResult, self.run("basket_option", params=fields, **options))

    def value_at_risk(
        self,
        weights: Numbers,
        *,
        returns: Numbers | None = None,
        probabilities: Numbers | None = None,
        covariance: Numbers | None = None,
        mean: Numbers | None = None,
        method: Literal["historical", "parametric", "monte_carlo"] = "historical",
        levels: Sequence[float] = (0.95, 0.99),
        quantile: Literal["lower", "higher", "linear"] = "lower",
        distribution: Literal["normal", "student_t", "cornish_fisher"] = "normal",
        degrees_of_freedom: float | None = None,
        decay: float | None = None,
        scenarios: int | None = None,
        components: bool = False,
        window: int = 0,
        **options: Unpack[RunOptions],
    ) -> ValueAtRiskResult:
        """Value at risk and expected shortfall of portfolios, with standard errors and each asset's contribution.

        Args:
            weights: amount held of each asset, shape (assets), or (portfolios, assets); losses are in its unit
            returns: simple returns of each asset in each scenario, shape (scenarios, assets), oldest first
            probabilities: weights of the scenarios, 0 or more, shape (scenarios)
            covariance: covariance of the returns instead of these, shape (assets, assets)
            mean: mean of the returns beside a covariance, shape (assets); 0 if left out
            method: historical: the scenarios as they are. parametric: from their moments, or from a covariance.
                monte_carlo: simulated from their covariance, or from the one given
            levels: confidence levels
            quantile: of n losses of scenarios: lower is the ceil(level n)-th of them, higher the next one where level n
                is whole, linear NumPy's default
            distribution: of the losses, for parametric and monte_carlo; student_t has the covariance given or measured.
                cornish_fisher (parametric alone): the normal quantile corrected by measured skewness and kurtosis
            degrees_of_freedom: of student_t; a whole number of at most 100 for monte_carlo
            decay: factor of a scenario's weight for each newer one; the last row is the newest. null: equal weights
            scenarios: that monte_carlo simulates; 100,000 if null
            components: also compute marginal and component contributions
            window: neighbours by rank on each side of the VaR scenario over which its contributions are averaged; for
                historical and monte_carlo; 0 to 100,000

        Returns:
            var: value at risk: the loss that is exceeded with probability 1 - level; shape (portfolios, levels), or
                (levels) for one portfolio
            cvar: expected shortfall: the mean of the worst 1 - level of the losses; shape (portfolios, levels), or
                (levels) for one portfolio
            var_error: standard error of var; NaN where it is not known; shape (portfolios, levels), or (levels) for one
                portfolio
            cvar_error: standard error of cvar; NaN where it is not known; shape (portfolios, levels), or (levels) for
                one portfolio
            marginal_var: derivative of var by each asset's weight; shape (portfolios, levels, assets), or (levels,
                assets); without `components` the last axis has length 0
            component_var: weight times marginal_var: parts of var, which add up to it; shape (portfolios, levels,
                assets), or (levels, assets); without `components` the last axis has length 0
            marginal_cvar: derivative of cvar by each asset's weight; shape (portfolios, levels, assets), or (levels,
                assets); without `components` the last axis has length 0
            component_cvar: weight times marginal_cvar: parts of cvar, which add up to it; shape (portfolios, levels,
                assets), or (levels, assets); without `components` the last axis has length 0
            levels: the confidence levels, in the order of the arrays
            method: historical, parametric or monte_carlo
            quantile: the rule of the quantile; null for parametric
        """
        fields = given(
            weights=weights,
            returns=returns,
            probabilities=probabilities,
            covariance=covariance,
            mean=mean,
            method=method,
            levels=levels,
            quantile=quantile,
            distribution=distribution,
            degrees_of_freedom=degrees_of_freedom,
            decay=decay,
            scenarios=scenarios,
            components=components,
            window=window,
        )
        return typed(ValueAtRiskResult, self.run("value_at_risk", params=fields, **options))

    def var_backtest(
        self, returns: Numbers, var: Numbers, *, level: float = 0.99, **options: Unpack[RunOptions]
    ) -> VarBacktestResult:
        """Tests of value-at-risk forecasts: Kupiec's, Christoffersen's and the Basel traffic light.

        Args:
            returns: what was earned, shape (series, time) or (time), oldest first; losses are negative
            var: the forecasts, of the shape of returns, losses positive: exceeded where -return > var
            level: confidence level of the forecasts; 0.5 to 0.999999

        Returns:
            exceptions: how often the loss exceeded the forecast, int64; shape (series); of one series (1)
            expected: how often it should have: (1 - level) times the number of forecasts
            kupiec: likelihood ratio of unconditional coverage (proportion of failures); shape (series); of one series
                (1)
            kupiec_p: its p-value, chi-squared with 1 degree of freedom; shape (series); of one series (1)
            independence: Christoffersen's likelihood ratio of independence; NaN where unknown; shape (series); of one
                series (1)
            independence_p: its p-value, chi-squared with 1 degree of freedom; shape (series); of one series (1)
            conditional: likelihood ratio of conditional coverage: kupiec + independence; shape (series); of one series
                (1)
            conditional_p: its p-value, chi-squared with 2 degrees of freedom; shape (series); of one series (1)
            transitions: how often no exception or one (first) was followed by none or one; int64, (series, 2, 2)
            zone: of the Basel traffic light for each series: green, yellow or red
            cumulative: probability of fewer or as many exceptions, by which the zone is chosen; shape (series); of one
                series (1)
            unknown: for each series null, or a sentence why its independence is not known
        """
        fields = given(returns=returns, var=var, level=level)
        return typed(VarBacktestResult, self.run("var_backtest", params=fields, **options))

    def performance(
        self,
        returns: Numbers,
        *,
        benchmark: Numbers | None = None,
        periods_per_year: float = 252.0,
        risk_free: float = 0.0,
        target: float | None = None,
        drawdowns: int = 5,
        **options: Unpack[RunOptions],
    ) -> PerformanceResult:
        """Performance of return series: growth, risk-adjusted ratios, drawdowns, and against a benchmark.

        Args:
            returns: simple returns, -1 or more, shape (series, time) or (time), oldest first
            benchmark: simple returns of a benchmark, shape (time)
            periods_per_year: returns in a year: 252 days, 12 months
            risk_free: rate of a year; that of a period is it divided by periods_per_year
            target: of a year, for Sortino and Omega; null: risk_free
            drawdowns: how many of the deepest drawdowns are listed; 1 to 20

        Returns:
            total_return: growth over all times, less 1; shape (series); of one series (1)
            annual_return: the same a year, compounded (CAGR); shape (series); of one series (1)
            volatility: standard deviation (n - 1) times the root of periods a year; shape (series); of one series (1)
            sharpe: mean over risk_free by the standard deviation, a year; shape (series); of one series (1)
            sortino: mean over target by the downside deviation over all n times, a year; shape (series); of one series
                (1)
            calmar: annual_return by max_drawdown; shape (series); of one series (1)
            omega: sum of returns above target by that of those below it; shape (series); of one series (1)
            skew: third moment by the 3/2 power of the variance (n); shape (series); of one series (1)
            kurtosis: fourth moment by the square of the variance (n), less 3; shape (series); of one series (1)
            max_drawdown: largest fall from a peak, as a positive part of it; shape (series); of one series (1)
            drawdown_depth: of the deepest drawdowns, deepest first, 0 where there are fewer; (series, drawdowns)
            drawdown_start: how many returns had been earned at the peak; -1: none; int32, (series, drawdowns)
            drawdown_trough: how many at the lowest point; -1: none; int32, (series, drawdowns)
            drawdown_recovery: how many when the peak was reached again; -1: not yet, or none; int32, (series,
                drawdowns)
            drawdown_length: returns from peak to recovery, or to the end; 0: none; int32, (series, drawdowns)
            tracking_error: standard deviation (n - 1) of returns less the benchmark's, a year; shape (series); of one
                series (1)
            information_ratio: mean of returns less the benchmark's by their deviation, a year; shape (series); of one
                series (1)
            beta: covariance with the benchmark by its variance; shape (series); of one series (1)
            alpha: mean excess return less beta times the benchmark's, a year (Jensen); shape (series); of one series
                (1)
            up_capture: geometric mean where the benchmark rose, by the benchmark's there; shape (series); of one series
                (1)
            down_capture: geometric mean where the benchmark fell, by the benchmark's there; shape (series); of one
                series (1)
            undefined: sentences: which numbers are NaN, of how many series, and why
        """
        fields = given(
            returns=returns,
            benchmark=benchmark,
            periods_per_year=periods_per_year,
            risk_free=risk_free,
            target=target,
            drawdowns=drawdowns,
        )
        return typed(PerformanceResult, self.run("performance", params=fields, **options))

    def dp_noise(
        self,
        values: Numbers,
        *,
        mechanism: Literal["discrete_laplace", "discrete_gaussian"],
        mode: Literal["records", "aggregate"],
        epsilon: str | float | None = None,
        delta: str | float | None = None,
        rho: str | float | None = None,
        scale: str | float | None = None,
        query: Literal["sum", "mean", "histogram", "identity"] = "sum",
        clip: Mapping[str, Any] | None = None,
        bins: Mapping[str, Any] | None = None,
        neighbouring: Literal["add_remove", "replace_one"] | None = None,
        sensitivity: Mapping[str, Any] | None = None,
        budget: str | None = None,
        unaccounted: Literal[True] | None = None,
        **options: Unpack[RunOptions],
    ) -> DpNoiseResult:
        """Release a sum, mean or histogram of records or a statistic, with exact discrete Laplace or Gaussian noise

        Args:
            values: records: (n,) or (n, d), one row per person; aggregate: the statistic, (d,) or (n, d)
            mechanism: discrete_laplace takes epsilon or scale; discrete_gaussian takes epsilon and delta, rho or scale
            mode: records: one row per person, clipped and queried here; aggregate: the values are the statistic
            epsilon: budget of pure DP, or with delta of approximate DP, as a string
            delta: discrete_gaussian: beside epsilon; or beside scale, so that epsilon is what is charged
            rho: zero-concentrated-DP budget, a decimal string
            scale: Laplace scale or Gaussian sigma in the unit of the values, a decimal string
            query: what is computed of records; identity is each of them by itself, histogram how many fall in a bin
            clip: records, but for histogram: the norm that bounds one's influence
            bins: histogram only: what is counted
            neighbouring: records only: replacing a record has twice the sensitivity of adding or removing one
            sensitivity: aggregate only: declared, and nothing checks it
            budget: the budget that is charged, once for each answer
            unaccounted: true: no budget is charged, and whoever repeats the request learns more each time

        Returns:
            noisy: float64: sum or mean (d,), counts (bins,), or records or statistic in the values' shape, with noise
            mechanism: discrete_laplace or discrete_gaussian
            scale: Laplace scale or Gaussian sigma of the noise, of a mean that in its sum: exact rational and number
            grid: what one integer step of those numbers is worth: exact rational and number
            sensitivity: {norm, grid_units, value}: what the noise was scaled to, rounding included
            sensitivity_source: enforced (by clipping or counting) or declared (by the caller)
            neighbouring: add_remove or replace_one; null where the caller declared the sensitivity
            spent: epsilon, rho, or epsilon, delta and rho of this release, at most what was asked: rationals and
                numbers
            split: of a mean under add_remove {sum, count}: what each spent, scale and grid, and the noisy count; else
                null
            accuracy_95: with probability 95 % the noise moved one number by less than this; clipping is not in it
            statement: what this result promises and what it does not
            unaccounted: true: no budget was charged; false: one was
        """
        fields = given(
            values=values,
            mechanism=mechanism,
            mode=mode,
            epsilon=epsilon,
            delta=delta,
            rho=rho,
            scale=scale,
            query=query,
            clip=clip,
            bins=bins,
            neighbouring=neighbouring,
            sensitivity=sensitivity,
            budget=budget,
            unaccounted=unaccounted,
        )
        return typed(DpNoiseResult, self.run("dp_noise", params=fields, **options))

    def secure_aggregation(
        self,
        masked: Numbers,
        self_seeds: Numbers,
        *,
        pair_seeds: Numbers | None = None,
        round_id: str,
        modulus_bits: Literal[32, 64],
        threshold: int,
        survivors: Sequence[int],
        dropped: Sequence[int] = (),
        pairs: Sequence[Sequence[Any]] = (),
        degree: int | None = None,
        ring: Sequence[int] = (),
        quantisation: Mapping[str, Any],
        output: Literal["int", "float", "mean"] = "float",
        total_weight: int | None = None,
        **options: Unpack[RunOptions],
    ) -> SecureAggregationResult:
        """Sum masked vectors mod 2^32 or 2^64, remove the masks of survivors and dropped clients, decode

        Args:
            masked: masked vectors, one row per survivor: (survivors, dim)
            self_seeds: seeds of the survivors' self masks: (survivors, 32)
            pair_seeds: seeds shared by a dropped client and a survivor: (pairs, 32)
            round_id: name of the round, returned with the sum
            modulus_bits: vectors and masks live mod 2**modulus_bits
            threshold: fewest survivors of a sharing set: all clients, or with a ring a client and its neighbours; more
                than half of it; 1 to 131,072
            survivors: clients whose vectors are summed, one per row of masked and self_seeds
            dropped: clients that took part but sent no vector
            pairs: (dropped, survivor) of each row of pair_seeds
            degree: neighbours of each client on the ring; null: everybody else
            ring: with degree: clients in the order of the ring, those too that shared no secrets and so masked with
                nobody
            total_weight: sum of the survivors' weights; needed for a mean when max_weight is above 1

        Returns:
            sum: sum of the survivors' vectors: int64, or float64 for output float and mean: (dim,)
            survivors: the clients summed
            overflow_proof: {max_abs_sum, limit}: the largest magnitude the sum can have, and the modulus allows
            round_id: the round named in the request
            statement: what this result protects and what it does not
        """
        fields = given(
            masked=masked,
            self_seeds=self_seeds,
            pair_seeds=pair_seeds,
            round_id=round_id,
            modulus_bits=modulus_bits,
            threshold=threshold,
            survivors=survivors,
            dropped=dropped,
            pairs=pairs,
            degree=degree,
            ring=ring,
            quantisation=quantisation,
            output=output,
            total_weight=total_weight,
        )
        return typed(SecureAggregationResult, self.run("secure_aggregation", params=fields, **options))

    def federated_average(
        self,
        *,
        updates: Numbers | None = None,
        weights: Numbers | None = None,
        sum: Numbers | None = None,
        model: Numbers | None = None,
        first_moment: Numbers | None = None,
        second_moment: Numbers | None = None,
        strategy: Literal["fedavg", "fedadam"] = "fedavg",
        learning_rate: float = 1.0,
        beta1: float | None = None,
        beta2: float | None = None,
        tau: float | None = None,
        round: Mapping[str, Any] | None = None,
        dp: Mapping[str, Any] | None = None,
        budget: str | None = None,
        unaccounted: Literal[True] | None = None,
        **options: Unpack[RunOptions],
    ) -> FederatedAverageResult:
        """Average clients' updates exactly, or clipped and with central noise; FedAvg and FedAdam

        Args:
            updates: one client's update in each row: (n, d)
            weights: weight of each client, 1 where none are given: (n,)
            sum: instead of updates: the sum of a round with output int: (d,)
            model: the model before this round: (d,)
            first_moment: of fedadam, from the round before: (d,)
            second_moment: of fedadam, from the round before: (d,)
            strategy: fedavg: the model moves by learning_rate * average; fedadam: Adam with the average as gradient
            learning_rate: of the server: how far the model moves
            beta1: fedadam: decay of the first moment, 0.9
            beta2: fedadam: decay of the second moment, 0.99
            tau: fedadam: added to the root of the second moment, 0.001
            round: for the input sum: what the round that gave it says of it
            dp: central noise; without it the average is exact
            budget: with dp: the budget that is charged, once for each answer
            unaccounted: with dp, true: no budget is charged, and every further average adds to what is learnt

        Returns:
            average: float64: the weighted average of the updates: (d,)
            model: float64: the model after this round: (d,); empty where none was given
            first_moment: float64: for the next round of fedadam: (d,); empty for fedavg
            second_moment: float64: for the next round of fedadam: (d,); empty for fedavg
            total_weight: what the sum was divided by: the true total, or with dp expected_weight
            mechanism: discrete_gaussian, or null without dp
            scale: sigma of the noise on the average: exact rational and number; null without dp
            grid: what one integer step is worth in the average; null without dp
            sensitivity: {norm, grid_units, value} of the average, rounding included; null without dp
            sensitivity_source: enforced (updates were clipped here) or declared (the round's clients clip); null
                without dp
            neighbouring: the relation the sensitivity is for; null without dp
            spent: rho of this average, and epsilon where a delta was given, at most what was asked; null without dp
            accuracy_95: with probability 95 % the noise on one coordinate of the average is smaller; null without dp
            server_learned: what this service saw to compute the average
            statement: what this result promises and what it does not
            unaccounted: true: no budget was charged; false: one was; null without dp
        """
        fields = given(
            updates=updates,
            weights=weights,
            sum=sum,
            model=model,
            first_moment=first_moment,
            second_moment=second_moment,
            strategy=strategy,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            tau=tau,
            round=round,
            dp=dp,
            budget=budget,
            unaccounted=unaccounted,
        )
        return typed(FederatedAverageResult, self.run("federated_average", params=fields, **options))

    def shamir_share(
        self,
        values: Numbers,
        *,
        field: Literal["m31", "m61"],
        threshold: int,
        shares: int,
        scale: str | float | None = None,
        **options: Unpack[RunOptions],
    ) -> ShamirShareResult:
        """Split every value of an array into shares over 2^31 - 1 or 2^61 - 1, some of which give it back

        Args:
            values: integers, or floats with a scale: (n,)
            field: prime field: m31 is 2**31 - 1 (uint32), m61 is 2**61 - 1 (uint64)
            threshold: how many shares give the values back; 2 to 255
            shares: how many shares are made, those of x = 1 to this number; 2 to 255
            scale: fixed point: integers per unit, a decimal string such as '65536'; floats need it

        Returns:
            shares: share of x = 1, 2, ... in row 0, 1, ...: (shares, n), uint32 for m31, uint64 for m61
            x: x of each row
            statement: what this result protects and what it does not
        """
        fields = given(values=values, field=field, threshold=threshold, shares=shares, scale=scale)
        return typed(ShamirShareResult, self.run("shamir_share", params=fields, **options))

    def shamir_reconstruct(
        self,
        shares: Numbers,
        *,
        field: Literal["m31", "m61"],
        threshold: int,
        x: Sequence[int],
        scale: str | float | None = None,
        correct: bool = False,
        **options: Unpack[RunOptions],
    ) -> ShamirReconstructResult:
        """Give an array back from its shares; every share beyond the threshold is checked, corrupted ones are named

        Args:
            shares: one row per share: (shares, n)
            field: prime field: m31 is 2**31 - 1 (uint32), m61 is 2**61 - 1 (uint64)
            threshold: the threshold the values were shared with; 2 to 255
            x: x of each row of shares; all different
            scale: fixed point: integers per unit, a decimal string such as '65536'; floats need it
            correct: true: shares that are found to be corrupted are named and left out; false: they are refused

        Returns:
            values: int64, or float64 where a scale is given: (n,)
            extra: how many shares beyond the threshold every element was checked against
            corrupted: x of the shares that were found to be corrupted and left out
            inconsistent: how many elements the shares given disagree at
            statement: what was checked and what cannot be
        """
        fields = given(shares=shares, field=field, threshold=threshold, x=x, scale=scale, correct=correct)
        return typed(ShamirReconstructResult, self.run("shamir_reconstruct", params=fields, **options))

    def tridiagonal_solve(
        self,
        lower: Numbers,
        diagonal: Numbers,
        upper: Numbers,
        rhs: Numbers,
        *,
        shift: float = 0.0,
        shift_imaginary: float = 0.0,
        **options: Unpack[RunOptions],
    ) -> TridiagonalSolveResult:
        """Solve tridiagonal systems (T - z I) x = b, real or complex, with log-determinant, residual and backward
        error.

        Args:
            lower: the numbers below the diagonal, from the second row on, shape (rows - 1) or (systems, rows - 1);
                complex: a last axis of two besides
            diagonal: the diagonal, shape (rows) or (systems, rows); complex: a last axis of two besides
            upper: the numbers above the diagonal, up to the last row but one, shape (rows - 1) or (systems, rows - 1);
                complex: a last axis of two besides
            rhs: the right-hand side, of the shape of diagonal, real or complex; all inputs have one dtype
            shift: z of T - z I, subtracted from the diagonal: its real part
            shift_imaginary: the imaginary part of z; if it is not 0, answers are complex

        Returns:
            solution: x, of the shape of rhs, complex where rhs, the matrix or z is; of the inputs' dtype
            log_determinant: ln |det(T - z I)| of each system, float64, shape (systems), or (1) for a single one
            sign: det / |det|: 1 or -1, or a complex number of size 1; float64, shape (systems) or (systems, 2)
            smallest_pivot: the smallest |u| / |d| of each system, at most 1: near 0 digits are lost; float64
            dominant: 1 where |d| >= |a| + |c| in every row, so that no pivoting is needed; uint8
            residual: the largest |b - (T - z I) x| of a row, of complex numbers the larger part, before x is rounded to
                its dtype; float64
            backward_error: residual / (|T - z I| |x| + |b|) in the maximum norm, of complex numbers up to twice that;
                above 1e-12 the system is computed again in twice the precision, and is not certified if that does not
                help; float64
            status: of each system: 0 certified, 1 certified after a repetition in twice the precision, 2 a pivot was
                refused, 3 an input is not finite, 4 not certified, or beyond float32. From 2 on its answers are NaN;
                uint8
            row: the row that a status of 2 or 3 is about, counted from 0, else -1; int64
        """
        fields = given(
            lower=lower, diagonal=diagonal, upper=upper, rhs=rhs, shift=shift, shift_imaginary=shift_imaginary
        )
        return typed(TridiagonalSolveResult, self.run("tridiagonal_solve", params=fields, **options))

    def tridiagonal_inverse_diagonal(
        self,
        lower: Numbers,
        diagonal: Numbers,
        upper: Numbers,
        *,
        shift: float = 0.0,
        shift_imaginary: float = 0.0,
        **options: Unpack[RunOptions],
    ) -> TridiagonalInverseDiagonalResult:
        """Diagonal of the inverse of tridiagonal matrices T - z I, real or complex, with log-determinant and error
        bound.

        Args:
            lower: the numbers below the diagonal, from the second row on, shape (rows - 1) or (systems, rows - 1);
                complex: a last axis of two besides
            diagonal: the diagonal, shape (rows) or (systems, rows); complex: a last axis of two besides
            upper: the numbers above the diagonal, up to the last row but one, shape (rows - 1) or (systems, rows - 1);
                complex: a last axis of two besides
            shift: z of T - z I, subtracted from the diagonal: its real part
            shift_imaginary: the imaginary part of z; if it is not 0, answers are complex

        Returns:
            inverse_diagonal: of the shape and dtype of diagonal, complex where the matrix or z is
            log_determinant: ln |det(T - z I)| of each system, float64, shape (systems), or (1) for a single one
            sign: det / |det|: 1 or -1, or a complex number of size 1; float64, shape (systems) or (systems, 2)
            smallest_pivot: the smallest |u| / |d| of each system, at most 1: near 0 digits are lost; float64
            dominant: 1 where |d| >= |a| + |c| in every row, so that no pivoting is needed; uint8
            error_bound: a bound of the relative error of each number, to first order, before it is rounded to its
                dtype; above 1e-09 the system is computed again in twice the precision, and is not certified if that
                does not help; float64
            status: of each system: 0 certified, 1 certified after a repetition in twice the precision, 2 a pivot was
                refused, 3 an input is not finite, 4 not certified, or beyond float32. From 2 on its answers are NaN;
                uint8
            row: the row that a status of 2 or 3 is about, counted from 0, else -1; int64
        """
        fields = given(lower=lower, diagonal=diagonal, upper=upper, shift=shift, shift_imaginary=shift_imaginary)
        return typed(
            TridiagonalInverseDiagonalResult, self.run("tridiagonal_inverse_diagonal", params=fields, **options)
        )

    def add(self, x: Numbers, y: Numbers, **options: Unpack[RunOptions]) -> AddResult:
        """Add two arrays.

        Args:
            x: float64 or float32, of any shape
            y: of x's shape and dtype

        Returns:
            add: x + y, of x's shape and dtype
        """
        fields = given(x=x, y=y)
        return typed(AddResult, self.run("add", params=fields, **options))

    def multiply(self, x: Numbers, y: Numbers, **options: Unpack[RunOptions]) -> MultiplyResult:
        """Multiply two arrays, element by element.

        Args:
            x: float64 or float32, of any shape
            y: of x's shape and dtype

        Returns:
            multiply: x * y, of x's shape and dtype
        """
        fields = given(x=x, y=y)
        return typed(MultiplyResult, self.run("multiply", params=fields, **options))

    def axpy(self, x: Numbers, y: Numbers, *, alpha: float, **options: Unpack[RunOptions]) -> AxpyResult:
        """Add a multiple of one array to another.

        Args:
            x: float64 or float32, of any shape
            y: of x's shape and dtype
            alpha: factor of x; rounded to float32 where the arrays are float32

        Returns:
            axpy: alpha * x + y, of x's shape and dtype
        """
        fields = given(x=x, y=y, alpha=alpha)
        return typed(AxpyResult, self.run("axpy", params=fields, **options))

    def dot(
        self, x: Numbers, y: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]
    ) -> DotResult:
        """Sum of products of two arrays, in float64.

        Args:
            x: float64 or float32, of any shape
            y: of x's shape and dtype
            axis: all: one number of all elements, shape (1). last: one number of each row, for x of shape (..., n) an
                array of shape (...).

        Returns:
            dot: sum of x * y: float64, of shape (1), or of x's shape without its last axis
        """
        fields = given(x=x, y=y, axis=axis)
        return typed(DotResult, self.run("dot", params=fields, **options))

    def sum(self, x: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]) -> SumResult:
        """Sum of all elements or of each row, in float64.

        Args:
            x: float64 or float32, of any shape
            axis: all: one number of all elements, shape (1). last: one number of each row, for x of shape (..., n) an
                array of shape (...).

        Returns:
            sum: the sum: float64, of shape (1), or of x's shape without its last axis
        """
        fields = given(x=x, axis=axis)
        return typed(SumResult, self.run("sum", params=fields, **options))

    def norm(
        self,
        x: Numbers,
        *,
        axis: Literal["all", "last"] = "all",
        order: Literal["l1", "l2", "linf"] = "l2",
        **options: Unpack[RunOptions],
    ) -> NormResult:
        """Norm of all elements or of each row: sum of magnitudes, Euclidean, or largest magnitude.

        Args:
            x: float64 or float32, of any shape
            axis: all: one number of all elements, shape (1). last: one number of each row, for x of shape (..., n) an
                array of shape (...).
            order: l1: sum of magnitudes. l2: root of the sum of squares. linf: largest magnitude.

        Returns:
            norm: the norm: float64, of shape (1), or of x's shape without its last axis
        """
        fields = given(x=x, axis=axis, order=order)
        return typed(NormResult, self.run("norm", params=fields, **options))

    def min(self, x: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]) -> MinResult:
        """Least element of all or of each row.

        Args:
            x: float64 or float32, of any shape
            axis: all: one number of all elements, shape (1). last: one number of each row, for x of shape (..., n) an
                array of shape (...).

        Returns:
            min: the least: of x's dtype and of shape (1), or of x's shape without its last axis; NaN where x holds one
        """
        fields = given(x=x, axis=axis)
        return typed(MinResult, self.run("min", params=fields, **options))

    def max(self, x: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]) -> MaxResult:
        """Greatest element of all or of each row.

        Args:
            x: float64 or float32, of any shape
            axis: all: one number of all elements, shape (1). last: one number of each row, for x of shape (..., n) an
                array of shape (...).

        Returns:
            max: the greatest: of x's dtype and of shape (1), or of x's shape without its last axis; NaN where x holds
                one
        """
        fields = given(x=x, axis=axis)
        return typed(MaxResult, self.run("max", params=fields, **options))

    def monte_carlo_until(
        self,
        *,
        payoff: Literal[
            "european",
            "asian_arithmetic",
            "asian_geometric",
            "barrier_up_out",
            "barrier_up_in",
            "barrier_down_out",
            "barrier_down_in",
            "cash_or_nothing",
            "asset_or_nothing",
            "lookback_fixed",
            "lookback_floating",
        ],
        option: Literal["call", "put"],
        spot: float,
        strike: float | None = None,
        rate: float = 0.0,
        dividend: float = 0.0,
        volatility: float,
        maturity: float,
        steps: int = 252,
        paths: int = 10000000000,
        include_spot: bool = False,
        barrier: float | None = None,
        monitoring: Literal["discrete", "continuous"] | None = None,
        rebate: float = 0.0,
        payout: float | None = None,
        extreme: float | None = None,
        control_variate: bool = True,
        sampling: Literal["pseudo", "antithetic", "sobol"] = "pseudo",
        greeks: bool = False,
        confidence: float = 0.95,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        standard_error: float,
        **options: Unpack[RunOptions],
    ) -> MonteCarloUntilResult:
        """Price of an option by as many simulated paths as its standard error needs: monte_carlo as a task

        Args:
            payoff: what is paid; Asian options average the fixings, barrier options knock in or out, digital options
                (cash_or_nothing, asset_or_nothing) pay all or nothing, lookback options the greatest or least price
            option: call pays price - strike, put strike - price, never below 0; digital: above or below the strike
            spot: price of the asset today; 1e-09 to 1,000,000,000,000.0
            strike: needed by every payoff but lookback_floating, whose strike is the extreme price
            rate: risk-free rate, continuously compounded; -10 to 10
            dividend: dividend yield, continuously compounded; -10 to 10
            volatility: per square root of a year: 0.2 is 20 %; 0, or at least 1e-9; 0 to 50
            maturity: years until expiry; 1e-09 to 1,000
            steps: equal time steps until expiry: fixings of an Asian option, dates at which a barrier or an extreme
                price is looked at; 1 to 10,000
            paths: the most paths that are simulated; 2 to 100,000,000,000
            include_spot: Asian: the price at time 0 counts as a first fixing
            barrier: level that knocks a barrier option in or out
            monitoring: barrier, lookback: looked at on the steps only, or at all times (default) by the Brownian bridge
            rebate: barrier: paid when an option is knocked out, or at expiry when it was never knocked in; 0 to
                1,000,000,000,000.0
            payout: cash_or_nothing: what is paid (default 1)
            extreme: lookback: the extreme price until today (default: the spot), the greatest for fixed calls and
                floating puts, the least for fixed puts and floating calls
            control_variate: asian_arithmetic: correct by the geometric average, whose price is known exactly
            sampling: pseudo-random paths; antithetic ones, in pairs of a path and its mirror image; or scrambled Sobol
                points by a Brownian bridge, where `paths` is 16 times a power of two, at least 4,096
            greeks: delta, vega, theta and rho by pathwise derivatives, with their errors; for payoffs without a jump,
                so not for barrier and digital ones
            confidence: level of the confidence interval; 0.5 to 0.999999
            quantiles: probabilities whose quantiles of the terminal price are wanted
            standard_error: the simulation ends once the estimate's standard error is at most this, in the currency of
                the prices, and nothing speaks against that error (`warnings`); 1e-09 to 1,000,000,000,000.0

        Returns:
            price: estimated present value
            standard_error: standard deviation of that estimate; 0 where all paths paid the same, no evidence where that
                was nothing
            confidence_interval: [low, high]: price -+ the standard error times the normal quantile, for sobol that of
                Student's t with 15 degrees of freedom
            confidence: level of the interval
            quantiles: [{probability, price}]: of the asset's simulated price at expiry
            quantile_resolution: greatest relative distance of a quantile from the simulated price of that rank (half a
                bin's width)
            control_variate: {name, closed_form, beta, beta_estimated, paying_paths, expected_paying_paths, plain_price,
                plain_standard_error, variance_reduction} where one was used; beta is 1, and not estimated, where fewer
                than 200 paths are expected to pay the control
            knocked_at_start: barrier payoffs: whether the spot is at or past the barrier; else null
            greeks: {delta, vega, theta, rho}, each {value, standard_error}, where they are wanted: per 1.00 of price
                and volatility, a year, 1.00 of rate; else null
            paths: paths simulated
            sampling: {method, samples, sobol_dimensions}: how many independent samples the standard error rests on,
                which are paths, pairs of paths or replicates; and how many of a path's dimensions are Sobol points',
                the others being pseudo-random
            paying_paths: paths whose payoff was positive (barrier at all times: whose expected payoff given its dates
                was)
            deciding_paths: paths over squared skewness: of k paths that pay the same where no other pays it is about k.
                Below 50 the standard error is not to be trusted
            warnings: sentences: why the price or its error is not to be trusted; empty if it is
            steps: time steps of each path
            reached: whether the standard error was reached; false where `paths` came first
        """
        fields = given(
            payoff=payoff,
            option=option,
            spot=spot,
            strike=strike,
            rate=rate,
            dividend=dividend,
            volatility=volatility,
            maturity=maturity,
            steps=steps,
            paths=paths,
            include_spot=include_spot,
            barrier=barrier,
            monitoring=monitoring,
            rebate=rebate,
            payout=payout,
            extreme=extreme,
            control_variate=control_variate,
            sampling=sampling,
            greeks=greeks,
            confidence=confidence,
            quantiles=quantiles,
            standard_error=standard_error,
        )
        return typed(MonteCarloUntilResult, self.run("monte_carlo_until", params=fields, **options))

    def optimize(
        self,
        *,
        covariance: Numbers | None = None,
        means: Numbers | None = None,
        scenarios: Numbers | None = None,
        lower: Numbers | None = None,
        upper: Numbers | None = None,
        groups: Numbers | None = None,
        group_lower: Numbers | None = None,
        group_upper: Numbers | None = None,
        previous: Numbers | None = None,
        costs: Numbers | None = None,
        benchmark: Numbers | None = None,
        objective: Literal["variance", "cvar"] = "variance",
        risk_aversion: float | None = None,
        confidence: float = 0.95,
        least_mean: float | None = None,
        turnover: float | None = None,
        tracking_error: float | None = None,
        **options: Unpack[RunOptions],
    ) -> OptimizeResult:
        """Portfolio of least variance or CVaR with groups, turnover, costs and tracking error, by Clarabel

        Args:
            covariance: symmetric covariance matrix of the returns, shape (assets, assets)
            means: mean return of each asset, shape (assets)
            scenarios: returns of each asset in each scenario, equally likely, shape (scenarios, assets)
            lower: lower bound of each weight, shape (assets) or (1); default 0
            upper: upper bound of each weight, shape (assets) or (1); default 1
            groups: factors of the weights in the sum of each group, shape (groups, assets)
            group_lower: the least of each sum, shape (groups)
            group_upper: the most of each sum, shape (groups)
            previous: weights before, for turnover and costs, shape (assets)
            costs: cost of a change of each weight by 1, as a return, shape (assets) or (1)
            benchmark: weights for tracking_error, shape (assets)
            objective: variance: the least risk_aversion w'Sw / 2 - means'w, or w'Sw / 2 without risk_aversion. cvar:
                the least mean of the worst losses over scenarios (Rockafellar and Uryasev 2000). Costs are added to
                both.
            risk_aversion: of variance; null: means are ignored
            confidence: of cvar: the worst 1 - confidence of the scenarios are averaged
            least_mean: the least mean return of the portfolio
            turnover: the most that sum |w - previous| may be
            tracking_error: the most that the standard deviation of w - benchmark may be

        Returns:
            weights: with sum 1, shape (assets)
            bounds: -1 for an asset at its lower bound, 1 at its upper one, to 1e-6, int32, shape (assets)
            risk_contributions: each asset's part of the variance, with sum 1, shape (assets); (0) without one
            mean: means'w; null without means
            risk: standard deviation of the return; null without a covariance
            cvar: mean of the worst losses over scenarios; null without scenarios
            turnover: sum |w - previous|; null without previous weights
            tracking_error: standard deviation of w - benchmark; null without a benchmark
            smallest_eigenvalue: of the covariance; null without one
            condition_number: the greatest eigenvalue over the smallest; null if singular
            objective: what was minimised, in units of the inputs
            gap: between the primal and the dual objective, in units of the inputs
            primal_residual: the library's, of the constraints
            dual_residual: the library's, of the conditions of optimality
            iterations: of the library
            status: solved, or almost_solved: to the library's reduced accuracy
            algorithm: library: its last digits are not promised
            algorithm_reason: the library and its version
        """
        fields = given(
            covariance=covariance,
            means=means,
            scenarios=scenarios,
            lower=lower,
            upper=upper,
            groups=groups,
            group_lower=group_lower,
            group_upper=group_upper,
            previous=previous,
            costs=costs,
            benchmark=benchmark,
            objective=objective,
            risk_aversion=risk_aversion,
            confidence=confidence,
            least_mean=least_mean,
            turnover=turnover,
            tracking_error=tracking_error,
        )
        return typed(OptimizeResult, self.run("optimize", params=fields, **options))
