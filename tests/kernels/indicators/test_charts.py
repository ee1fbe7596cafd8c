"""The charts of the reference page: the same when drawn anew, small, titled, with every number of an example."""

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from warpdesk_server.kernels.catalogue import OPERATIONS

PAGE = ROOT / "docs/reference/indicators.md"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "write_charts.py"))


@pytest.fixture(scope="module")
def drawn(script: dict[str, Any]) -> dict[Path, str]:
    charts: dict[Path, str] = script["charts"]()
    return charts


def test_the_charts_are_those_of_the_examples(drawn: dict[Path, str]) -> None:
    folder = ROOT / "docs/images/indicators"
    assert set(folder.iterdir()) == drawn.keys(), "`make indicators` writes them anew"
    assert [path.name for path, text in drawn.items() if path.read_text() != text] == []
    shown = re.findall(r"!\[.+\]\(\.\./images/indicators/(\w+\.svg)\)", PAGE.read_text())
    assert sorted(shown) == sorted(path.name for path in drawn)


def test_the_charts_are_small_and_have_a_title_for_who_does_not_see_them(drawn: dict[Path, str]) -> None:
    assert sum(len(text) for text in drawn.values()) < 500_000
    for path, text in drawn.items():
        assert len(text) < 8_000, path
        picture = ET.fromstring(text)  # noqa: S314 (ours)
        title = picture.find(f"{SVG}title")
        assert picture.get("role") == "img"
        assert title is not None
        assert title.text is not None
        assert title.text.startswith(f"{path.stem} of ")


def test_a_line_has_a_point_for_each_number_and_higher_numbers_are_higher(drawn: dict[Path, str]) -> None:
    operation = OPERATIONS["macd"]
    close = np.array(operation.example.inputs["close"]["data"])
    answer = operation.implementation("cpu")(operation.params(**operation.example.params), close=close)
    picture = ET.fromstring(drawn[ROOT / "docs/images/indicators/macd.svg"])  # noqa: S314 (ours)
    colours = {each.text.strip(): each.get("fill") for each in picture.iter(f"{SVG}tspan") if each.text}
    lines = {each.get("stroke"): each.get("d", "") for each in picture.iter(f"{SVG}path")}
    assert list(colours) == ["macd", "signal", "histogram"]
    heights = {}
    for name, colour in colours.items():
        points = re.findall(r"[ML]([\d.]+) ([\d.]+)", lines[colour])
        numbers = answer[name][np.isfinite(answer[name])]
        assert len(points) == len(numbers)
        heights[name] = (np.array([float(y) for _, y in points]), numbers)
    ys, numbers = (np.concatenate(each) for each in zip(*heights.values(), strict=True))
    slope, offset = np.polyfit(numbers, ys, 1)
    assert slope < 0
    assert np.abs(ys - (slope * numbers + offset)).max() <= 0.06  # coordinates have one decimal place


def test_a_gap_parts_a_line_and_a_number_alone_is_a_dot(script: dict[str, Any]) -> None:
    nan = float("nan")
    scale = script["Scale"]([[0.0, 4.0]], top=0, height=4)
    text = script["_line"]([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, nan, 3.0, nan, 4.0], scale, "red")
    assert re.findall(r' d="([^"]+)"', text) == ["M0 3L1 2", "M3 1h0M5 0h0"]
