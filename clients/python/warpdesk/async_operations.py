"""The asynchronous client's method for each operation, with types: written by clients/python/write_methods.py."""

# ruff: noqa: A002 (operations have parameters that are called like builtins)

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from warpdesk.calls import NanPolicy, Numbers, Result, RunOptions, given, typed
from warpdesk.operations import (
    AccelerationBandsResult,
    AccelerationOscillatorResult,
    AddResult,
    AdoscResult,
    AdResult,
    AdrResult,
    AdxResult,
    AdxrResult,
    AlmaResult,
    AmericanOptionResult,
    ApoResult,
    AroonResult,
    AtrResult,
    AveragePriceResult,
    AwesomeOscillatorResult,
    AxpyResult,
    BacktestResult,
    BacktestSweepResult,
    BalanceOfPowerResult,
    BarsResult,
    BasketOptionResult,
    BlackScholesResult,
    BollingerResult,
    BreakoutResult,
    CandlestickResult,
    CciResult,
    ChaikinVolatilityResult,
    CloseToCloseResult,
    CmfResult,
    CmoResult,
    CoppockResult,
    CovarianceResult,
    CrossoverResult,
    CrossRankResult,
    CrossZscoreResult,
    DemaResult,
    DetrendedPriceResult,
    DirectionalMovementResult,
    DonchianResult,
    DotResult,
    DpNoiseResult,
    EfficiencyRatioResult,
    ElderRayResult,
    EmaResult,
    ExpressionResult,
    ExtremesResult,
    FederatedAverageResult,
    ForceIndexResult,
    ForecastOscillatorResult,
    FractalResult,
    FrontierResult,
    GarmanKlassResult,
    HeikinAshiResult,
    HmaResult,
    HrpResult,
    IchimokuResult,
    ImpliedVolatilityResult,
    IntradayMomentumResult,
    KamaResult,
    KdjResult,
    KeltnerResult,
    LinearRegressionResult,
    MacdResult,
    MarketFacilitationResult,
    MassIndexResult,
    MatmulResult,
    MaxResult,
    MeanReversionResult,
    MedianPriceResult,
    MfiResult,
    MidpointResult,
    MidpriceResult,
    MinResult,
    MomentumResult,
    MonteCarloResult,
    MonteCarloUntilResult,
    MultiplyResult,
    NatrResult,
    NeutraliseResult,
    NormResult,
    NviResult,
    ObvResult,
    OptimizeResult,
    OverfittingResult,
    ParabolicSarExtendedResult,
    ParabolicSarResult,
    ParkinsonResult,
    PercentRankResult,
    PerformanceResult,
    PpoResult,
    PviResult,
    PvoResult,
    PvtResult,
    QstickResult,
    RelativeVolatilityResult,
    RelativeVolumeResult,
    RiskParityResult,
    RmaResult,
    RocResult,
    RogersSatchellResult,
    RollingPairResult,
    RollingQuantileResult,
    RollingResult,
    RsiResult,
    SecureAggregationResult,
    SessionVwapResult,
    ShamirReconstructResult,
    ShamirShareResult,
    SmaResult,
    StochasticMomentumResult,
    StochasticResult,
    StochasticRsiResult,
    SumResult,
    SupertrendResult,
    SwingPivotsResult,
    T3Result,
    TemaResult,
    ThresholdResult,
    TridiagonalInverseDiagonalResult,
    TridiagonalSolveResult,
    TrimaResult,
    TrixResult,
    TrueRangeResult,
    TsiResult,
    TypicalPriceResult,
    UltimateOscillatorResult,
    ValueAtRiskResult,
    VarBacktestResult,
    VerticalHorizontalFilterResult,
    VidyaResult,
    VortexResult,
    VwapResult,
    VwmaResult,
    WadResult,
    WeightedCloseResult,
    WilliamsRResult,
    WinsoriseResult,
    WmaResult,
    YangZhangResult,
    ZlmaResult,
)


class AsyncOperations(ABC):
    """A method for each operation: inputs are arrays, frames, lists or uploaded arrays, options those of `run`."""

    @abstractmethod
    async def run(self, operation: str, *, params: Mapping[str, Any] | None = None, **fields: Any) -> Result: ...

    async def matmul(
        self,
        a: Numbers,
        b: Numbers,
        *,
        algorithm: Literal["kernel", "library"] | None = None,
        precision: Literal["ieee", "tf32", "bf16", "fp16"] = "ieee",
        **options: Unpack[RunOptions],
    ) -> MatmulResult:
        """Matrix product a @ b, single or batched. Arguments are those of `Client.matmul`."""
        fields = given(a=a, b=b, algorithm=algorithm, precision=precision)
        return typed(MatmulResult, await self.run("matmul", params=fields, **options))

    async def sma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> SmaResult:
        """Simple moving average: the mean of the last `period` prices. Arguments are those of `Client.sma`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(SmaResult, await self.run("sma", params=fields, **options))

    async def ema(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> EmaResult:
        """Exponential moving average: e <- e + alpha (close - e), alpha = 2 / (period + 1). Arguments are those of
        `Client.ema`."""
        fields = given(close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(EmaResult, await self.run("ema", params=fields, **options))

    async def bollinger(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        width: float | Sequence[float] = 2.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> BollingerResult:
        """Bollinger bands: mean and `width` population standard deviations around it. Arguments are those of
        `Client.bollinger`."""
        fields = given(close=close, period=period, width=width, nan_policy=nan_policy)
        return typed(BollingerResult, await self.run("bollinger", params=fields, **options))

    async def rma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RmaResult:
        """Wilder's average: alpha = 1 / period, from the mean of the first `period` prices (Wilder 1978). Arguments are
        those of `Client.rma`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(RmaResult, await self.run("rma", params=fields, **options))

    async def wma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> WmaResult:
        """Weighted average: weights period, period - 1, ... 1 from the newest price on. Arguments are those of
        `Client.wma`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(WmaResult, await self.run("wma", params=fields, **options))

    async def trima(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TrimaResult:
        """Triangular average: a simple average of a simple average. Arguments are those of `Client.trima`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(TrimaResult, await self.run("trima", params=fields, **options))

    async def dema(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DemaResult:
        """Double exponential average: 2 e - ema(e), e = ema(close) (Mulloy 1994). Arguments are those of
        `Client.dema`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(DemaResult, await self.run("dema", params=fields, **options))

    async def tema(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TemaResult:
        """Triple exponential average: 3 e - 3 ema(e) + ema(ema(e)) (Mulloy 1994). Arguments are those of
        `Client.tema`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(TemaResult, await self.run("tema", params=fields, **options))

    async def t3(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 5,
        factor: float = 0.7,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> T3Result:
        """Tillson's T3: six exponential averages, weighed by the volume factor (Tillson 1998). Arguments are those of
        `Client.t3`."""
        fields = given(close=close, period=period, factor=factor, nan_policy=nan_policy)
        return typed(T3Result, await self.run("t3", params=fields, **options))

    async def hma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> HmaResult:
        """Hull average: wma(2 wma(close, period / 2) - wma(close, period), sqrt(period)), both rounded down (Hull
        2005). Arguments are those of `Client.hma`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(HmaResult, await self.run("hma", params=fields, **options))

    async def zlma(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ZlmaResult:
        """Zero-lag exponential average: ema of 2 close - the close (period - 1) / 2 bars ago (Ehlers and Way 2010).
        Arguments are those of `Client.zlma`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(ZlmaResult, await self.run("zlma", params=fields, **options))

    async def kama(
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
        over `period` bars; from the close before the first (Kaufman 1995). Arguments are those of `Client.kama`."""
        fields = given(close=close, period=period, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(KamaResult, await self.run("kama", params=fields, **options))

    async def vidya(
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
        before the first oscillator. Chande's article of 1992 has a ratio of deviations in its place. Arguments are
        those of `Client.vidya`."""
        fields = given(close=close, period=period, pace_period=pace_period, nan_policy=nan_policy)
        return typed(VidyaResult, await self.run("vidya", params=fields, **options))

    async def alma(
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
        the newest and whose deviation is period / sigma bars (Legoux and Kouzis-Loukas 2009). Arguments are those of
        `Client.alma`."""
        fields = given(close=close, period=period, offset=offset, sigma=sigma, nan_policy=nan_policy)
        return typed(AlmaResult, await self.run("alma", params=fields, **options))

    async def midpoint(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MidpointResult:
        """Middle of the highest and the lowest close of the last `period` bars. Arguments are those of
        `Client.midpoint`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(MidpointResult, await self.run("midpoint", params=fields, **options))

    async def midprice(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MidpriceResult:
        """Middle of the highest high and the lowest low of the last `period` bars. Arguments are those of
        `Client.midprice`."""
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(MidpriceResult, await self.run("midprice", params=fields, **options))

    async def vwma(
        self,
        close: Numbers,
        volume: Numbers,
        *,
        period: int | Sequence[int],
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VwmaResult:
        """Average weighed by volume over the last `period` bars; NaN where nothing was traded in all of them. Arguments
        are those of `Client.vwma`."""
        fields = given(close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(VwmaResult, await self.run("vwma", params=fields, **options))

    async def average_price(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AveragePriceResult:
        """Mean of open, high, low and close. Arguments are those of `Client.average_price`."""
        fields = given(open=open, high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(AveragePriceResult, await self.run("average_price", params=fields, **options))

    async def median_price(
        self, high: Numbers, low: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> MedianPriceResult:
        """Mean of high and low. Arguments are those of `Client.median_price`."""
        fields = given(high=high, low=low, nan_policy=nan_policy)
        return typed(MedianPriceResult, await self.run("median_price", params=fields, **options))

    async def typical_price(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TypicalPriceResult:
        """Mean of high, low and close. Arguments are those of `Client.typical_price`."""
        fields = given(high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(TypicalPriceResult, await self.run("typical_price", params=fields, **options))

    async def weighted_close(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> WeightedCloseResult:
        """Mean of high, low and twice the close. Arguments are those of `Client.weighted_close`."""
        fields = given(high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(WeightedCloseResult, await self.run("weighted_close", params=fields, **options))

    async def donchian(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 20,
        current: bool = True,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DonchianResult:
        """Donchian channel: the highest high and the lowest low of the last `period` bars. Arguments are those of
        `Client.donchian`."""
        fields = given(high=high, low=low, period=period, current=current, nan_policy=nan_policy)
        return typed(DonchianResult, await self.run("donchian", params=fields, **options))

    async def keltner(
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
        Arguments are those of `Client.keltner`."""
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
        return typed(KeltnerResult, await self.run("keltner", params=fields, **options))

    async def acceleration_bands(
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
        2002). Arguments are those of `Client.acceleration_bands`."""
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(AccelerationBandsResult, await self.run("acceleration_bands", params=fields, **options))

    async def ichimoku(
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
        lagging line as many behind; here every number stands at the bar at which it is known. Arguments are those of
        `Client.ichimoku`."""
        fields = given(
            high=high,
            low=low,
            conversion_period=conversion_period,
            base_period=base_period,
            span_period=span_period,
            nan_policy=nan_policy,
        )
        return typed(IchimokuResult, await self.run("ichimoku", params=fields, **options))

    async def parabolic_sar(
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
        changes sides when it is met (Wilder 1978). It begins on the side to which the second bar moves more. Arguments
        are those of `Client.parabolic_sar`."""
        fields = given(high=high, low=low, acceleration=acceleration, maximum=maximum, nan_policy=nan_policy)
        return typed(ParabolicSarResult, await self.run("parabolic_sar", params=fields, **options))

    async def parabolic_sar_extended(
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
        pace above its maximum the maximum counts. Arguments are those of `Client.parabolic_sar_extended`."""
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
        return typed(ParabolicSarExtendedResult, await self.run("parabolic_sar_extended", params=fields, **options))

    async def supertrend(
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
        where the close leaves them. Arguments are those of `Client.supertrend`."""
        fields = given(high=high, low=low, close=close, period=period, width=width, nan_policy=nan_policy)
        return typed(SupertrendResult, await self.run("supertrend", params=fields, **options))

    async def heikin_ashi(
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
        Arguments are those of `Client.heikin_ashi`."""
        fields = given(open=open, high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(HeikinAshiResult, await self.run("heikin_ashi", params=fields, **options))

    async def rsi(
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
        Arguments are those of `Client.rsi`."""
        fields = given(close=close, period=period, convention=convention, flat=flat, nan_policy=nan_policy)
        return typed(RsiResult, await self.run("rsi", params=fields, **options))

    async def macd(
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
        """Moving average convergence/divergence (Appel 1979). Arguments are those of `Client.macd`."""
        fields = given(
            close=close,
            fast=fast,
            slow=slow,
            signal=signal,
            average=average,
            convention=convention,
            nan_policy=nan_policy,
        )
        return typed(MacdResult, await self.run("macd", params=fields, **options))

    async def apo(
        self,
        close: Numbers,
        *,
        fast: int | Sequence[int] = 12,
        slow: int | Sequence[int] = 26,
        average: Literal["ema", "sma"] = "ema",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ApoResult:
        """Absolute price oscillator: the fast less the slow average. Arguments are those of `Client.apo`."""
        fields = given(close=close, fast=fast, slow=slow, average=average, nan_policy=nan_policy)
        return typed(ApoResult, await self.run("apo", params=fields, **options))

    async def ppo(
        self,
        close: Numbers,
        *,
        fast: int | Sequence[int] = 12,
        slow: int | Sequence[int] = 26,
        average: Literal["ema", "sma"] = "ema",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> PpoResult:
        """Percentage price oscillator: the fast less the slow average, in percent of the slow one. Arguments are those
        of `Client.ppo`."""
        fields = given(close=close, fast=fast, slow=slow, average=average, nan_policy=nan_policy)
        return typed(PpoResult, await self.run("ppo", params=fields, **options))

    async def pvo(
        self,
        volume: Numbers,
        *,
        fast: int | Sequence[int] = 12,
        slow: int | Sequence[int] = 26,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> PvoResult:
        """Percentage volume oscillator: the percentage price oscillator of volume. Arguments are those of
        `Client.pvo`."""
        fields = given(volume=volume, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(PvoResult, await self.run("pvo", params=fields, **options))

    async def momentum(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MomentumResult:
        """Momentum: the change of the close over `period` bars. Arguments are those of `Client.momentum`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(MomentumResult, await self.run("momentum", params=fields, **options))

    async def roc(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        form: Literal["percent", "fraction", "ratio", "ratio100", "log"] = "percent",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RocResult:
        """Rate of change: the close relative to that of `period` bars ago; 0 where that one was 0. Arguments are those
        of `Client.roc`."""
        fields = given(close=close, period=period, form=form, nan_policy=nan_policy)
        return typed(RocResult, await self.run("roc", params=fields, **options))

    async def stochastic(
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
        to 100, smoothed; 0 where they are equal (Lane 1984). Arguments are those of `Client.stochastic`."""
        fields = given(
            high=high, low=low, close=close, period=period, smooth=smooth, signal=signal, nan_policy=nan_policy
        )
        return typed(StochasticResult, await self.run("stochastic", params=fields, **options))

    async def stochastic_rsi(
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
        Arguments are those of `Client.stochastic_rsi`."""
        fields = given(close=close, rsi_period=rsi_period, period=period, signal=signal, nan_policy=nan_policy)
        return typed(StochasticRsiResult, await self.run("stochastic_rsi", params=fields, **options))

    async def williams_r(
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
        are equal. Arguments are those of `Client.williams_r`."""
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(WilliamsRResult, await self.run("williams_r", params=fields, **options))

    async def cci(
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
        (Lambert 1980); 0 where there is no deviation. Arguments are those of `Client.cci`."""
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(CciResult, await self.run("cci", params=fields, **options))

    async def cmo(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        convention: Literal["talib", "chande"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CmoResult:
        """Chande momentum oscillator: gains less losses relative to both, -100 to 100; 0 where nothing moved. Arguments
        are those of `Client.cmo`."""
        fields = given(close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(CmoResult, await self.run("cmo", params=fields, **options))

    async def trix(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 15,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TrixResult:
        """TRIX: the change of an exponential average of an average of an average, in percent (Hutson 1983). Arguments
        are those of `Client.trix`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(TrixResult, await self.run("trix", params=fields, **options))

    async def tsi(
        self,
        close: Numbers,
        *,
        slow: int | Sequence[int] = 25,
        fast: int | Sequence[int] = 13,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TsiResult:
        """True strength index: changes, averaged twice, relative to their sizes, -100 to 100 (Blau 1991). Arguments are
        those of `Client.tsi`."""
        fields = given(close=close, slow=slow, fast=fast, nan_policy=nan_policy)
        return typed(TsiResult, await self.run("tsi", params=fields, **options))

    async def ultimate_oscillator(
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
        Arguments are those of `Client.ultimate_oscillator`."""
        fields = given(high=high, low=low, close=close, short=short, medium=medium, long=long, nan_policy=nan_policy)
        return typed(UltimateOscillatorResult, await self.run("ultimate_oscillator", params=fields, **options))

    async def awesome_oscillator(
        self,
        high: Numbers,
        low: Numbers,
        *,
        fast: int | Sequence[int] = 5,
        slow: int | Sequence[int] = 34,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AwesomeOscillatorResult:
        """Awesome oscillator: the fast less the slow simple average of (high + low) / 2 (Williams 1998). Arguments are
        those of `Client.awesome_oscillator`."""
        fields = given(high=high, low=low, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(AwesomeOscillatorResult, await self.run("awesome_oscillator", params=fields, **options))

    async def acceleration_oscillator(
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
        """Acceleration oscillator: the awesome oscillator less its simple average (Williams 1998). Arguments are those
        of `Client.acceleration_oscillator`."""
        fields = given(high=high, low=low, fast=fast, slow=slow, signal=signal, nan_policy=nan_policy)
        return typed(AccelerationOscillatorResult, await self.run("acceleration_oscillator", params=fields, **options))

    async def aroon(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AroonResult:
        """Aroon: how long ago the highest high and the lowest low of the last `period` + 1 bars were, 100 for now; of
        equal ones the newest counts (Chande 1995). Arguments are those of `Client.aroon`."""
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(AroonResult, await self.run("aroon", params=fields, **options))

    async def directional_movement(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DirectionalMovementResult:
        """Directional movement: Wilder's sums of what bars reach above and below the last (Wilder 1978). Arguments are
        those of `Client.directional_movement`."""
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(DirectionalMovementResult, await self.run("directional_movement", params=fields, **options))

    async def adx(
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
        """Average directional index with its lines (Wilder 1978). Arguments are those of `Client.adx`."""
        fields = given(high=high, low=low, close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(AdxResult, await self.run("adx", params=fields, **options))

    async def adxr(
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
        Arguments are those of `Client.adxr`."""
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(AdxrResult, await self.run("adxr", params=fields, **options))

    async def vortex(
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
        (Botes and Siepman 2010). Arguments are those of `Client.vortex`."""
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(VortexResult, await self.run("vortex", params=fields, **options))

    async def balance_of_power(
        self,
        open: Numbers,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> BalanceOfPowerResult:
        """Balance of power: (close - open) / (high - low); 0 where high and low are equal. Arguments are those of
        `Client.balance_of_power`."""
        fields = given(open=open, high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(BalanceOfPowerResult, await self.run("balance_of_power", params=fields, **options))

    async def qstick(
        self,
        open: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> QstickResult:
        """Qstick: the simple average of close - open (Chande 1994). Arguments are those of `Client.qstick`."""
        fields = given(open=open, close=close, period=period, nan_policy=nan_policy)
        return typed(QstickResult, await self.run("qstick", params=fields, **options))

    async def elder_ray(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 13,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ElderRayResult:
        """Elder's ray: how far high and low lie from an exponential average of closes (Elder 1989). Arguments are those
        of `Client.elder_ray`."""
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(ElderRayResult, await self.run("elder_ray", params=fields, **options))

    async def efficiency_ratio(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> EfficiencyRatioResult:
        """Efficiency ratio: the change over `period` bars relative to the way there, 0 to 1 (Kaufman 1995). Arguments
        are those of `Client.efficiency_ratio`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(EfficiencyRatioResult, await self.run("efficiency_ratio", params=fields, **options))

    async def coppock(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 10,
        short: int = 11,
        long: int = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CoppockResult:
        """Coppock curve: the weighted average of the sum of two rates of change (Coppock 1962). Arguments are those of
        `Client.coppock`."""
        fields = given(close=close, period=period, short=short, long=long, nan_policy=nan_policy)
        return typed(CoppockResult, await self.run("coppock", params=fields, **options))

    async def vertical_horizontal_filter(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 28,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VerticalHorizontalFilterResult:
        """Vertical horizontal filter: the highest less the lowest close relative to the way between them (White 1991).
        Arguments are those of `Client.vertical_horizontal_filter`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(
            VerticalHorizontalFilterResult, await self.run("vertical_horizontal_filter", params=fields, **options)
        )

    async def detrended_price(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> DetrendedPriceResult:
        """Detrended price oscillator: the close period / 2 + 1 bars ago less the mean of the last `period` closes.
        Arguments are those of `Client.detrended_price`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(DetrendedPriceResult, await self.run("detrended_price", params=fields, **options))

    async def intraday_momentum(
        self,
        open: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> IntradayMomentumResult:
        """Intraday momentum index: an RSI of close - open, 0 to 100; 50 where nothing moved (Chande and Kroll 1994).
        Arguments are those of `Client.intraday_momentum`."""
        fields = given(open=open, close=close, period=period, nan_policy=nan_policy)
        return typed(IntradayMomentumResult, await self.run("intraday_momentum", params=fields, **options))

    async def kdj(
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
        """KDJ: a stochastic oscillator smoothed by Wilder's averages, and how far its lines are apart. Arguments are
        those of `Client.kdj`."""
        fields = given(
            high=high, low=low, close=close, period=period, smooth=smooth, signal=signal, nan_policy=nan_policy
        )
        return typed(KdjResult, await self.run("kdj", params=fields, **options))

    async def stochastic_momentum(
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
        half the range, -100 to 100 (Blau 1993). Arguments are those of `Client.stochastic_momentum`."""
        fields = given(
            high=high, low=low, close=close, period=period, slow=slow, fast=fast, signal=signal, nan_policy=nan_policy
        )
        return typed(StochasticMomentumResult, await self.run("stochastic_momentum", params=fields, **options))

    async def forecast_oscillator(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ForecastOscillatorResult:
        """Forecast oscillator: how far the close lies from what the regression of the `period` closes before it
        forecast, in percent of the close (Chande 1992). Arguments are those of `Client.forecast_oscillator`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(ForecastOscillatorResult, await self.run("forecast_oscillator", params=fields, **options))

    async def relative_volatility(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        deviation: int = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RelativeVolatilityResult:
        """Relative volatility index: an RSI of deviations, counted as gains or losses by the change of the close; 50
        where nothing moved (Dorsey 1993). Arguments are those of `Client.relative_volatility`."""
        fields = given(close=close, period=period, deviation=deviation, nan_policy=nan_policy)
        return typed(RelativeVolatilityResult, await self.run("relative_volatility", params=fields, **options))

    async def true_range(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        convention: Literal["talib", "tradingview"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> TrueRangeResult:
        """True range: the range of the bar and the close before it (Wilder 1978). Arguments are those of
        `Client.true_range`."""
        fields = given(high=high, low=low, close=close, convention=convention, nan_policy=nan_policy)
        return typed(TrueRangeResult, await self.run("true_range", params=fields, **options))

    async def atr(
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
        """Average true range: Wilder's average of the true range (Wilder 1978). Arguments are those of `Client.atr`."""
        fields = given(high=high, low=low, close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(AtrResult, await self.run("atr", params=fields, **options))

    async def natr(
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
        """Average true range in percent of the close. Arguments are those of `Client.natr`."""
        fields = given(high=high, low=low, close=close, period=period, convention=convention, nan_policy=nan_policy)
        return typed(NatrResult, await self.run("natr", params=fields, **options))

    async def adr(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AdrResult:
        """Average daily range: the simple average of high - low. Arguments are those of `Client.adr`."""
        fields = given(high=high, low=low, period=period, nan_policy=nan_policy)
        return typed(AdrResult, await self.run("adr", params=fields, **options))

    async def chaikin_volatility(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 10,
        lookback: int = 10,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ChaikinVolatilityResult:
        """Chaikin's volatility: the change of the exponential average of high - low, in percent. Arguments are those of
        `Client.chaikin_volatility`."""
        fields = given(high=high, low=low, period=period, lookback=lookback, nan_policy=nan_policy)
        return typed(ChaikinVolatilityResult, await self.run("chaikin_volatility", params=fields, **options))

    async def mass_index(
        self,
        high: Numbers,
        low: Numbers,
        *,
        fast: int | Sequence[int] = 9,
        slow: int | Sequence[int] = 25,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MassIndexResult:
        """Mass index: the sum of ema(range) / ema(ema(range)) over `slow` bars (Dorsey 1992). Arguments are those of
        `Client.mass_index`."""
        fields = given(high=high, low=low, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(MassIndexResult, await self.run("mass_index", params=fields, **options))

    async def close_to_close(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        periods_per_year: float = 252.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> CloseToCloseResult:
        """Volatility of logarithmic returns: their sample deviation (ddof = 1). Arguments are those of
        `Client.close_to_close`."""
        fields = given(close=close, period=period, periods_per_year=periods_per_year, nan_policy=nan_policy)
        return typed(CloseToCloseResult, await self.run("close_to_close", params=fields, **options))

    async def parkinson(
        self,
        high: Numbers,
        low: Numbers,
        *,
        period: int | Sequence[int] = 20,
        periods_per_year: float = 252.0,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ParkinsonResult:
        """Parkinson's volatility: of the range, mean of ln(high / low)^2 / (4 ln 2) (Parkinson 1980). Arguments are
        those of `Client.parkinson`."""
        fields = given(high=high, low=low, period=period, periods_per_year=periods_per_year, nan_policy=nan_policy)
        return typed(ParkinsonResult, await self.run("parkinson", params=fields, **options))

    async def garman_klass(
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
        Klass 1980). Arguments are those of `Client.garman_klass`."""
        fields = given(
            open=open,
            high=high,
            low=low,
            close=close,
            period=period,
            periods_per_year=periods_per_year,
            nan_policy=nan_policy,
        )
        return typed(GarmanKlassResult, await self.run("garman_klass", params=fields, **options))

    async def rogers_satchell(
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
        / o) (Rogers and Satchell 1991). Arguments are those of `Client.rogers_satchell`."""
        fields = given(
            open=open,
            high=high,
            low=low,
            close=close,
            period=period,
            periods_per_year=periods_per_year,
            nan_policy=nan_policy,
        )
        return typed(RogersSatchellResult, await self.run("rogers_satchell", params=fields, **options))

    async def yang_zhang(
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
        Satchell's; k = 0.34 / (1.34 + (n + 1) / (n - 1)) (Yang and Zhang 2000). Arguments are those of
        `Client.yang_zhang`."""
        fields = given(
            open=open,
            high=high,
            low=low,
            close=close,
            period=period,
            periods_per_year=periods_per_year,
            nan_policy=nan_policy,
        )
        return typed(YangZhangResult, await self.run("yang_zhang", params=fields, **options))

    async def obv(
        self,
        close: Numbers,
        volume: Numbers,
        *,
        convention: Literal["talib", "zero"] = "talib",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ObvResult:
        """On-balance volume: volume added where the close rises and taken away where it falls (Granville 1963).
        Arguments are those of `Client.obv`."""
        fields = given(close=close, volume=volume, convention=convention, nan_policy=nan_policy)
        return typed(ObvResult, await self.run("obv", params=fields, **options))

    async def ad(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> AdResult:
        """Accumulation/distribution: the sum of money flow volumes (Chaikin). Arguments are those of `Client.ad`."""
        fields = given(high=high, low=low, close=close, volume=volume, nan_policy=nan_policy)
        return typed(AdResult, await self.run("ad", params=fields, **options))

    async def adosc(
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
        first number. Arguments are those of `Client.adosc`."""
        fields = given(high=high, low=low, close=close, volume=volume, fast=fast, slow=slow, nan_policy=nan_policy)
        return typed(AdoscResult, await self.run("adosc", params=fields, **options))

    async def cmf(
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
        """Chaikin money flow: money flow volume relative to volume over `period` bars, -1 to 1. Arguments are those of
        `Client.cmf`."""
        fields = given(high=high, low=low, close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(CmfResult, await self.run("cmf", params=fields, **options))

    async def mfi(
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
        """Money flow index: an RSI of typical price times volume, 0 to 100 (Quong and Soudack 1989). Arguments are
        those of `Client.mfi`."""
        fields = given(high=high, low=low, close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(MfiResult, await self.run("mfi", params=fields, **options))

    async def force_index(
        self,
        close: Numbers,
        volume: Numbers,
        *,
        period: int | Sequence[int] = 13,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ForceIndexResult:
        """Force index: the exponential average of the change of the close times volume (Elder 1993). Arguments are
        those of `Client.force_index`."""
        fields = given(close=close, volume=volume, period=period, nan_policy=nan_policy)
        return typed(ForceIndexResult, await self.run("force_index", params=fields, **options))

    async def market_facilitation(
        self,
        high: Numbers,
        low: Numbers,
        volume: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> MarketFacilitationResult:
        """Market facilitation index: (high - low) / volume; 0 where there is no volume (Williams). Arguments are those
        of `Client.market_facilitation`."""
        fields = given(high=high, low=low, volume=volume, nan_policy=nan_policy)
        return typed(MarketFacilitationResult, await self.run("market_facilitation", params=fields, **options))

    async def pvt(
        self, close: Numbers, volume: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> PvtResult:
        """Price volume trend: the sum of volume times the relative change of the close. Arguments are those of
        `Client.pvt`."""
        fields = given(close=close, volume=volume, nan_policy=nan_policy)
        return typed(PvtResult, await self.run("pvt", params=fields, **options))

    async def relative_volume(
        self,
        volume: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> RelativeVolumeResult:
        """Relative volume: volume relative to the mean of the `period` bars before it. Arguments are those of
        `Client.relative_volume`."""
        fields = given(volume=volume, period=period, nan_policy=nan_policy)
        return typed(RelativeVolumeResult, await self.run("relative_volume", params=fields, **options))

    async def vwap(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        volume: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> VwapResult:
        """Average price weighed by volume since the first bar. Arguments are those of `Client.vwap`."""
        fields = given(high=high, low=low, close=close, volume=volume, nan_policy=nan_policy)
        return typed(VwapResult, await self.run("vwap", params=fields, **options))

    async def session_vwap(
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
        """Average price weighed by volume since the first bar of the session. Arguments are those of
        `Client.session_vwap`."""
        fields = given(high=high, low=low, close=close, volume=volume, session=session, nan_policy=nan_policy)
        return typed(SessionVwapResult, await self.run("session_vwap", params=fields, **options))

    async def wad(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> WadResult:
        """Williams' accumulation/distribution: the sum of how far closes lie from the true low where they rise, and
        from the true high where they fall. Arguments are those of `Client.wad`."""
        fields = given(high=high, low=low, close=close, nan_policy=nan_policy)
        return typed(WadResult, await self.run("wad", params=fields, **options))

    async def nvi(
        self, close: Numbers, volume: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> NviResult:
        """Negative volume index: 1000 times all relative changes of the close at bars of less volume than the last
        (Dysart, Fosback 1976). Arguments are those of `Client.nvi`."""
        fields = given(close=close, volume=volume, nan_policy=nan_policy)
        return typed(NviResult, await self.run("nvi", params=fields, **options))

    async def pvi(
        self, close: Numbers, volume: Numbers, *, nan_policy: NanPolicy = "window", **options: Unpack[RunOptions]
    ) -> PviResult:
        """Positive volume index: 1000 times all relative changes of the close at bars of more volume than the last.
        Arguments are those of `Client.pvi`."""
        fields = given(close=close, volume=volume, nan_policy=nan_policy)
        return typed(PviResult, await self.run("pvi", params=fields, **options))

    async def rolling(
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
        """A statistic of the last `period` closes. Arguments are those of `Client.rolling`."""
        fields = given(close=close, period=period, statistic=statistic, ddof=ddof, nan_policy=nan_policy)
        return typed(RollingResult, await self.run("rolling", params=fields, **options))

    async def rolling_quantile(
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
        pandas calls the quantile 0.95. Arguments are those of `Client.rolling_quantile`."""
        fields = given(close=close, period=period, percent=percent, between=between, nan_policy=nan_policy)
        return typed(RollingQuantileResult, await self.run("rolling_quantile", params=fields, **options))

    async def percent_rank(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 30,
        equal: Literal["out", "in"] = "out",
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> PercentRankResult:
        """Percent rank: how many of the `period` closes before it the close exceeds, in percent. Arguments are those of
        `Client.percent_rank`."""
        fields = given(close=close, period=period, equal=equal, nan_policy=nan_policy)
        return typed(PercentRankResult, await self.run("percent_rank", params=fields, **options))

    async def extremes(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 30,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ExtremesResult:
        """Highest and lowest close of the last `period` bars, and how long ago they were; the newest of equal ones
        counts. Arguments are those of `Client.extremes`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(ExtremesResult, await self.run("extremes", params=fields, **options))

    async def linear_regression(
        self,
        close: Numbers,
        *,
        period: int | Sequence[int] = 14,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> LinearRegressionResult:
        """Linear regression of the last `period` closes on time. Arguments are those of `Client.linear_regression`."""
        fields = given(close=close, period=period, nan_policy=nan_policy)
        return typed(LinearRegressionResult, await self.run("linear_regression", params=fields, **options))

    async def mean_reversion(
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
        Arguments are those of `Client.mean_reversion`."""
        fields = given(close=close, period=period, entry=entry, exit=exit, nan_policy=nan_policy)
        return typed(MeanReversionResult, await self.run("mean_reversion", params=fields, **options))

    async def crossover(
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
        Arguments are those of `Client.crossover`."""
        fields = given(close=close, fast=fast, slow=slow, average=average, nan_policy=nan_policy)
        return typed(CrossoverResult, await self.run("crossover", params=fields, **options))

    async def breakout(
        self,
        high: Numbers,
        low: Numbers,
        close: Numbers,
        *,
        period: int | Sequence[int] = 20,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> BreakoutResult:
        """Breakout: the close leaves the range of the `period` bars before it. Arguments are those of
        `Client.breakout`."""
        fields = given(high=high, low=low, close=close, period=period, nan_policy=nan_policy)
        return typed(BreakoutResult, await self.run("breakout", params=fields, **options))

    async def swing_pivots(
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
        first counts. Arguments are those of `Client.swing_pivots`."""
        fields = given(high=high, low=low, left=left, right=right, nan_policy=nan_policy)
        return typed(SwingPivotsResult, await self.run("swing_pivots", params=fields, **options))

    async def fractal(
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
        likewise; shown at the bar that confirms it, `right` bars later (Williams 1995). Arguments are those of
        `Client.fractal`."""
        fields = given(high=high, low=low, left=left, right=right, nan_policy=nan_policy)
        return typed(FractalResult, await self.run("fractal", params=fields, **options))

    async def threshold(
        self,
        close: Numbers,
        *,
        upper: float,
        lower: float,
        nan_policy: NanPolicy = "window",
        **options: Unpack[RunOptions],
    ) -> ThresholdResult:
        """Threshold: whether the close is above a level. With a lower level to fall below, small moves do not count.
        Arguments are those of `Client.threshold`."""
        fields = given(close=close, upper=upper, lower=lower, nan_policy=nan_policy)
        return typed(ThresholdResult, await self.run("threshold", params=fields, **options))

    async def rolling_pair(
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
        assets. Arguments are those of `Client.rolling_pair`."""
        fields = given(
            close=close,
            benchmark=benchmark,
            period=period,
            statistic=statistic,
            of=of,
            ddof=ddof,
            nan_policy=nan_policy,
        )
        return typed(RollingPairResult, await self.run("rolling_pair", params=fields, **options))

    async def candlestick(
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
        Arguments are those of `Client.candlestick`."""
        fields = given(
            open=open, high=high, low=low, close=close, pattern=pattern, penetration=penetration, nan_policy=nan_policy
        )
        return typed(CandlestickResult, await self.run("candlestick", params=fields, **options))

    async def expression(
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
        """Several indicators in one request, or new ones: a graph of series as JSON. Arguments are those of
        `Client.expression`."""
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
        return typed(ExpressionResult, await self.run("expression", params=fields, **options))

    async def bars(
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
        """Bars by time, count, volume or dollars with their VWAP, from ticks or from smaller bars Arguments are those
        of `Client.bars`."""
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
        return typed(BarsResult, await self.run("bars", params=fields, **options))

    async def cross_rank(
        self,
        values: Numbers,
        *,
        groups: Numbers | None = None,
        ties: Literal["average", "min", "max", "dense", "first"] = "average",
        percentile: bool = False,
        **options: Unpack[RunOptions],
    ) -> CrossRankResult:
        """Rank or percentile of each asset among all assets, or its group, at each bar. Arguments are those of
        `Client.cross_rank`."""
        fields = given(values=values, groups=groups, ties=ties, percentile=percentile)
        return typed(CrossRankResult, await self.run("cross_rank", params=fields, **options))

    async def cross_zscore(
        self, values: Numbers, *, groups: Numbers | None = None, ddof: Literal[0, 1] = 0, **options: Unpack[RunOptions]
    ) -> CrossZscoreResult:
        """Distance of each asset from the mean of all assets, or its group, in standard deviations, at each bar.
        Arguments are those of `Client.cross_zscore`."""
        fields = given(values=values, groups=groups, ddof=ddof)
        return typed(CrossZscoreResult, await self.run("cross_zscore", params=fields, **options))

    async def winsorise(
        self,
        values: Numbers,
        *,
        groups: Numbers | None = None,
        lower: float = 0.01,
        upper: float = 0.99,
        **options: Unpack[RunOptions],
    ) -> WinsoriseResult:
        """Clip each asset to two quantiles of all assets, or its group, at each bar. Arguments are those of
        `Client.winsorise`."""
        fields = given(values=values, groups=groups, lower=lower, upper=upper)
        return typed(WinsoriseResult, await self.run("winsorise", params=fields, **options))

    async def neutralise(
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
        values. Arguments are those of `Client.neutralise`."""
        fields = given(values=values, factors=factors, weights=weights, groups=groups, intercept=intercept)
        return typed(NeutraliseResult, await self.run("neutralise", params=fields, **options))

    async def black_scholes(
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
        """Prices and Greeks of European options by Black-Scholes-Merton, Black 76 or Bachelier. Arguments are those of
        `Client.black_scholes`."""
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
        return typed(BlackScholesResult, await self.run("black_scholes", params=fields, **options))

    async def implied_volatility(
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
        """Volatilities that European options' prices imply under Black-Scholes-Merton, Black 76 or Bachelier. Arguments
        are those of `Client.implied_volatility`."""
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
        return typed(ImpliedVolatilityResult, await self.run("implied_volatility", params=fields, **options))

    async def american_option(
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
        """Prices, Greeks and critical prices of American options by Black-Scholes-Merton or Black 76. Arguments are
        those of `Client.american_option`."""
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
        return typed(AmericanOptionResult, await self.run("american_option", params=fields, **options))

    async def covariance(
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
        principal components. Arguments are those of `Client.covariance`."""
        fields = given(
            returns=returns,
            method=method,
            decay=decay,
            demean=demean,
            periods_per_year=periods_per_year,
            eigenvalues=eigenvalues,
            components=components,
        )
        return typed(CovarianceResult, await self.run("covariance", params=fields, **options))

    async def risk_parity(
        self,
        covariance: Numbers,
        *,
        budgets: Numbers | None = None,
        tolerance: float = 1e-10,
        sweeps: int = 1000,
        spectrum: bool = False,
        **options: Unpack[RunOptions],
    ) -> RiskParityResult:
        """Long-only weights whose assets have given parts of the portfolio's risk: equal ones, or budgets. Arguments
        are those of `Client.risk_parity`."""
        fields = given(covariance=covariance, budgets=budgets, tolerance=tolerance, sweeps=sweeps, spectrum=spectrum)
        return typed(RiskParityResult, await self.run("risk_parity", params=fields, **options))

    async def frontier(
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
        Arguments are those of `Client.frontier`."""
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
        return typed(FrontierResult, await self.run("frontier", params=fields, **options))

    async def hrp(
        self,
        covariance: Numbers,
        *,
        distance: Literal["of_distances", "of_correlations"] = "of_distances",
        linkage: Literal["single", "complete", "average"] = "single",
        spectrum: bool = False,
        **options: Unpack[RunOptions],
    ) -> HrpResult:
        """Hierarchical risk parity: weights by halves of a tree of clusters, with no inverse of the covariance.
        Arguments are those of `Client.hrp`."""
        fields = given(covariance=covariance, distance=distance, linkage=linkage, spectrum=spectrum)
        return typed(HrpResult, await self.run("hrp", params=fields, **options))

    async def backtest_sweep(
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
        """Metrics of a strategy for each set of parameters and each asset, with fees, stops and targets. Arguments are
        those of `Client.backtest_sweep`."""
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
        return typed(BacktestSweepResult, await self.run("backtest_sweep", params=fields, **options))

    async def backtest(
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
        Arguments are those of `Client.backtest`."""
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
        return typed(BacktestResult, await self.run("backtest", params=fields, **options))

    async def overfitting(
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
        """How much of the best set's result is luck: deflated Sharpe ratio, PBO, walk-forward. Arguments are those of
        `Client.overfitting`."""
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
        return typed(OverfittingResult, await self.run("overfitting", params=fields, **options))

    async def monte_carlo(
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
        its error Arguments are those of `Client.monte_carlo`."""
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
        return typed(MonteCarloResult, await self.run("monte_carlo", params=fields, **options))

    async def basket_option(
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
        Arguments are those of `Client.basket_option`."""
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
        return typed(BasketOptionResult, await self.run("basket_option", params=fields, **options))

    async def value_at_risk(
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
        Arguments are those of `Client.value_at_risk`."""
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
        return typed(ValueAtRiskResult, await self.run("value_at_risk", params=fields, **options))

    async def var_backtest(
        self, returns: Numbers, var: Numbers, *, level: float = 0.99, **options: Unpack[RunOptions]
    ) -> VarBacktestResult:
        """Tests of value-at-risk forecasts: Kupiec's, Christoffersen's and the Basel traffic light. Arguments are those
        of `Client.var_backtest`."""
        fields = given(returns=returns, var=var, level=level)
        return typed(VarBacktestResult, await self.run("var_backtest", params=fields, **options))

    async def performance(
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
        """Performance of return series: growth, risk-adjusted ratios, drawdowns, and against a benchmark. Arguments are
        those of `Client.performance`."""
        fields = given(
            returns=returns,
            benchmark=benchmark,
            periods_per_year=periods_per_year,
            risk_free=risk_free,
            target=target,
            drawdowns=drawdowns,
        )
        return typed(PerformanceResult, await self.run("performance", params=fields, **options))

    async def dp_noise(
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
        Arguments are those of `Client.dp_noise`."""
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
        return typed(DpNoiseResult, await self.run("dp_noise", params=fields, **options))

    async def secure_aggregation(
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
        """Sum masked vectors mod 2^32 or 2^64, remove the masks of survivors and dropped clients, decode Arguments are
        those of `Client.secure_aggregation`."""
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
        return typed(SecureAggregationResult, await self.run("secure_aggregation", params=fields, **options))

    async def federated_average(
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
        """Average clients' updates exactly, or clipped and with central noise; FedAvg and FedAdam Arguments are those
        of `Client.federated_average`."""
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
        return typed(FederatedAverageResult, await self.run("federated_average", params=fields, **options))

    async def shamir_share(
        self,
        values: Numbers,
        *,
        field: Literal["m31", "m61"],
        threshold: int,
        shares: int,
        scale: str | float | None = None,
        **options: Unpack[RunOptions],
    ) -> ShamirShareResult:
        """Split every value of an array into shares over 2^31 - 1 or 2^61 - 1, some of which give it back Arguments are
        those of `Client.shamir_share`."""
        fields = given(values=values, field=field, threshold=threshold, shares=shares, scale=scale)
        return typed(ShamirShareResult, await self.run("shamir_share", params=fields, **options))

    async def shamir_reconstruct(
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
        Arguments are those of `Client.shamir_reconstruct`."""
        fields = given(shares=shares, field=field, threshold=threshold, x=x, scale=scale, correct=correct)
        return typed(ShamirReconstructResult, await self.run("shamir_reconstruct", params=fields, **options))

    async def tridiagonal_solve(
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
        error. Arguments are those of `Client.tridiagonal_solve`."""
        fields = given(
            lower=lower, diagonal=diagonal, upper=upper, rhs=rhs, shift=shift, shift_imaginary=shift_imaginary
        )
        return typed(TridiagonalSolveResult, await self.run("tridiagonal_solve", params=fields, **options))

    async def tridiagonal_inverse_diagonal(
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
        bound. Arguments are those of `Client.tridiagonal_inverse_diagonal`."""
        fields = given(lower=lower, diagonal=diagonal, upper=upper, shift=shift, shift_imaginary=shift_imaginary)
        return typed(
            TridiagonalInverseDiagonalResult, await self.run("tridiagonal_inverse_diagonal", params=fields, **options)
        )

    async def add(self, x: Numbers, y: Numbers, **options: Unpack[RunOptions]) -> AddResult:
        """Add two arrays. Arguments are those of `Client.add`."""
        fields = given(x=x, y=y)
        return typed(AddResult, await self.run("add", params=fields, **options))

    async def multiply(self, x: Numbers, y: Numbers, **options: Unpack[RunOptions]) -> MultiplyResult:
        """Multiply two arrays, element by element. Arguments are those of `Client.multiply`."""
        fields = given(x=x, y=y)
        return typed(MultiplyResult, await self.run("multiply", params=fields, **options))

    async def axpy(self, x: Numbers, y: Numbers, *, alpha: float, **options: Unpack[RunOptions]) -> AxpyResult:
        """Add a multiple of one array to another. Arguments are those of `Client.axpy`."""
        fields = given(x=x, y=y, alpha=alpha)
        return typed(AxpyResult, await self.run("axpy", params=fields, **options))

    async def dot(
        self, x: Numbers, y: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]
    ) -> DotResult:
        """Sum of products of two arrays, in float64. Arguments are those of `Client.dot`."""
        fields = given(x=x, y=y, axis=axis)
        return typed(DotResult, await self.run("dot", params=fields, **options))

    async def sum(
        self, x: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]
    ) -> SumResult:
        """Sum of all elements or of each row, in float64. Arguments are those of `Client.sum`."""
        fields = given(x=x, axis=axis)
        return typed(SumResult, await self.run("sum", params=fields, **options))

    async def norm(
        self,
        x: Numbers,
        *,
        axis: Literal["all", "last"] = "all",
        order: Literal["l1", "l2", "linf"] = "l2",
        **options: Unpack[RunOptions],
    ) -> NormResult:
        """Norm of all elements or of each row: sum of magnitudes, Euclidean, or largest magnitude. Arguments are those
        of `Client.norm`."""
        fields = given(x=x, axis=axis, order=order)
        return typed(NormResult, await self.run("norm", params=fields, **options))

    async def min(
        self, x: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]
    ) -> MinResult:
        """Least element of all or of each row. Arguments are those of `Client.min`."""
        fields = given(x=x, axis=axis)
        return typed(MinResult, await self.run("min", params=fields, **options))

    async def max(
        self, x: Numbers, *, axis: Literal["all", "last"] = "all", **options: Unpack[RunOptions]
    ) -> MaxResult:
        """Greatest element of all or of each row. Arguments are those of `Client.max`."""
        fields = given(x=x, axis=axis)
        return typed(MaxResult, await self.run("max", params=fields, **options))

    async def monte_carlo_until(
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
        """Price of an option by as many simulated paths as its standard error needs: monte_carlo as a task Arguments
        are those of `Client.monte_carlo_until`."""
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
        return typed(MonteCarloUntilResult, await self.run("monte_carlo_until", params=fields, **options))

    async def optimize(
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
        """Portfolio of least variance or CVaR with groups, turnover, costs and tracking error, by Clarabel Arguments
        are those of `Client.optimize`."""
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
        return typed(OptimizeResult, await self.run("optimize", params=fields, **options))
