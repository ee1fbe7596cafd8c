"""Draw a chart of each indicator's example as SVG, docs/images/indicators/NAME.svg: `make indicators`.

Above are the prices of the example and the outputs that lie among them, below the other outputs. Colours are read on
light and on dark pages, so there is no background.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.indicators.declared import DECLARED
from warpdesk_server.kernels.operation import Operation

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "images" / "indicators"
os.environ.setdefault("NUMBA_CACHE_DIR", str(HERE.parent / ".cache" / "numba" / fingerprint()))

WIDTH, RIGHT, TOP, ABOVE, BELOW = 480, 52, 18, 110, 72  # of the picture, its scale, its legend, its two parts
GREY, TEXT = "#8c8c8c", "#7a7a7a"
COLOURS = ("#2f81f7", "#d9730d", "#2da44e", "#a371f7")
MARKED = "candlestick"  # its output marks bars: 100 upward, -100 downward

Series = Sequence[float]


class Scale:
    """The vertical scale of a part of the picture, from the least to the greatest of its numbers."""

    def __init__(self, every: Iterable[Series], top: float, height: float) -> None:
        numbers = [number for series in every for number in series if math.isfinite(number)]
        self.least, self.greatest = min(numbers, default=0.0), max(numbers, default=1.0)
        self.top, self.height = top, height

    def __call__(self, number: float) -> float:
        span = (self.greatest - self.least) or 1.0
        return self.top + self.height * (self.greatest - number) / span

    def labels(self) -> Iterator[str]:
        """The least and the greatest number, beside the part."""
        for number, offset in ((self.greatest, 8), (self.least, 0)):
            yield f'<text x="{WIDTH - RIGHT + 6}" y="{_short(self(number) + offset)}">{_compact(number)}</text>'


def _compact(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def charts() -> dict[Path, str]:
    """The picture of every indicator, by its file."""
    return {FOLDER / f"{operation.name}.svg": chart(operation) for operation in DECLARED}


def chart(operation: Operation) -> str:
    """The picture of an indicator's example, of its first series where it has several."""
    arrays = {name: np.array(each["data"], each["dtype"]) for name, each in operation.example.inputs.items()}
    answer = operation.implementation("cpu")(operation.params(**operation.example.params), **arrays)
    shown = {each.name: each.shown for each in operation.inputs}
    inputs = {shown[name]: _row(array) for name, array in arrays.items()}
    outputs = {each.name: _row(answer[each.name]) for each in operation.outputs if each.kind == "array"}

    prices = [series for name, series in inputs.items() if name not in ("volume", "session")]
    bars = len(next(iter(inputs.values())))
    step = (WIDTH - RIGHT) / bars
    places = [round(step * (bar + 0.5), 1) for bar in range(bars)]
    among = [name for name, series in outputs.items() if prices and operation.name != MARKED and _among(series, prices)]
    below = [name for name in outputs if name not in among and operation.name != MARKED]
    above = Scale([*prices, *(outputs[name] for name in among)], TOP, ABOVE) if prices else None

    lines = []
    if above:
        if "volume" in inputs:
            lines.append(_columns(places, inputs["volume"], TOP + ABOVE, ABOVE / 4))
        lines += [_prices(places, inputs, above), *above.labels()]
        lines += [_line(places, outputs[name], above, _colour(outputs, name)) for name in among]
        if operation.name == MARKED:
            lines += _marks(places, outputs[MARKED], inputs, above)
    elif "volume" in inputs:
        lines.append(_columns(places, inputs["volume"], TOP + ABOVE, ABOVE))
    if below:
        scale = Scale([outputs[name] for name in below], TOP + ABOVE + 14, BELOW)
        if scale.least < 0 < scale.greatest:
            lines.append(f'<path stroke="{GREY}" stroke-width=".5" d="M0 {_short(scale(0.0))}H{WIDTH - RIGHT}"/>')
        lines += [_line(places, outputs[name], scale, _colour(outputs, name)) for name in below]
        lines += scale.labels()
    height = TOP + ABOVE + 11 + (BELOW + 12) * bool(below)
    return "\n".join([*_head(operation, bars, height, outputs), *lines, "</svg>", ""])


def _head(operation: Operation, bars: int, height: int, outputs: Iterable[str]) -> Iterator[str]:
    title = f"{operation.name} of {bars} example bars: {operation.summary}"
    size = f'viewBox="0 0 {WIDTH} {height}" fill="none" stroke-width="1.2"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'
    yield f"<title>{escape(title)}</title>"
    names = list(outputs)
    legend = "".join(f'<tspan fill="{_colour(names, name)}">{name} </tspan>' for name in names)
    yield f"<style>text{{font:10px sans-serif;fill:{TEXT}}}path{{stroke-linejoin:round}}</style>"
    yield f'<text x="2" y="11">{legend}</text>'


def _row(array: np.ndarray) -> list[float]:
    """The numbers of a series, or of the first of several."""
    row: list[float] = array.reshape(-1, array.shape[-1])[0].tolist()
    return row


def _among(series: Series, prices: Sequence[Series]) -> bool:
    """Whether a series lies among prices, no farther outside them than half of their range."""
    numbers = [number for number in series if math.isfinite(number)]
    least, greatest = min(map(min, prices)), max(map(max, prices))
    reach = (greatest - least) / 2
    return bool(numbers) and least - reach <= min(numbers) and max(numbers) <= greatest + reach


def _colour(names: Iterable[str], name: str) -> str:
    return COLOURS[list(names).index(name) % len(COLOURS)]


def _prices(places: Series, inputs: dict[str, list[float]], scale: Scale) -> str:
    """Bars from low to high, with the open to the left and the close to the right, or a line for each series."""
    if not {"high", "low"} <= inputs.keys():
        lines = [_line(places, series, scale, GREY) for name, series in inputs.items() if name != "volume"]
        return "\n".join(lines)
    parts = []
    for bar, x in enumerate(places):
        parts.append(f"M{_short(x)} {_short(scale(inputs['high'][bar]))}V{_short(scale(inputs['low'][bar]))}")
        if "open" in inputs:
            parts.append(f"M{_short(x - 3)} {_short(scale(inputs['open'][bar]))}h3")
        if "close" in inputs:
            parts.append(f"M{_short(x)} {_short(scale(inputs['close'][bar]))}h3")
    return f'<path stroke="{GREY}" d="{"".join(parts)}"/>'


def _columns(places: Series, series: Series, bottom: float, height: float) -> str:
    greatest = max(series)
    heights = [height * number / greatest for number in series]
    parts = [f"M{_short(x)} {_short(bottom)}v-{_short(each)}" for x, each in zip(places, heights, strict=True)]
    return f'<path stroke="{GREY}" stroke-width="4" opacity=".5" d="{"".join(parts)}"/>'


def _line(places: Series, series: Series, scale: Scale, colour: str) -> str:
    """A line through the numbers of a series, with a gap where it has none; a number alone is a dot."""
    path, alone, begun = [], [], False
    for bar, (x, number) in enumerate(zip(places, series, strict=True)):
        if not math.isfinite(number):
            begun = False
            continue
        place = f"{_short(x)} {_short(scale(number))}"
        last = bar + 1 == len(series) or not math.isfinite(series[bar + 1])
        if not begun and last:
            alone.append(f"M{place}h0")
        else:
            path.append(f"{'L' if begun else 'M'}{place}")
        begun = True
    dots = f'<path stroke="{colour}" stroke-width="4" stroke-linecap="round" d="{"".join(alone)}"/>'
    return f'<path stroke="{colour}" d="{"".join(path)}"/>' * bool(path) + dots * bool(alone)


def _marks(places: Series, series: Series, inputs: dict[str, list[float]], scale: Scale) -> Iterator[str]:
    """A triangle at each bar that a pattern ends at: below it where it points up, above it where down."""
    for bar, number in enumerate(series):
        if math.isfinite(number) and number != 0:
            up = number > 0
            y = scale(inputs["low"][bar]) + 4 if up else scale(inputs["high"][bar]) - 4
            colour, side = (COLOURS[2], 6) if up else (COLOURS[1], -6)
            yield f'<path fill="{colour}" d="M{_short(places[bar])} {_short(y)}l4 {side}h-8z"/>'


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    drawn = charts()
    for stale in set(FOLDER.glob("*.svg")) - drawn.keys():
        stale.unlink()
    for path, text in drawn.items():
        path.write_text(text)
