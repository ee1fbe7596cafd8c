"""A run of the operations' benchmark: what it keeps, what it draws, and what it says has become slower."""

import csv
import json
import sys
from dataclasses import replace

import pytest

from warpdesk.cli.main import main
from warpdesk_server.benchmarks import on_gpu, operations
from warpdesk_server.benchmarks.__main__ import NAMES
from warpdesk_server.benchmarks.__main__ import main as start
from warpdesk_server.benchmarks.compare import compared, elsewhere
from warpdesk_server.benchmarks.operations import Run
from warpdesk_server.benchmarks.report import Timing
from warpdesk_server.benchmarks.rows import Row
from warpdesk_server.kernels.gpu.faults import NoDevice


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("WARPDESK_HOME", str(tmp_path / "home"))


@pytest.fixture
def no_gpu(monkeypatch):
    def none():
        raise NoDevice("the test has none")

    monkeypatch.setattr(on_gpu, "open_gpu", none)


def test_bench_writes_json_csv_and_a_picture_of_what_it_measured(tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "png")}
    options = [f"--json={files['json']}", f"--csv={files['csv']}", f"--picture={files['png']}"]

    code = main(["bench", "sum", "bollinger", "--cpu", "--sizes=small", *options])

    printed = capsys.readouterr().out
    kept = json.loads(files["json"].read_text())
    rows = [Row.read(row) for row in kept["rows"]]
    assert code == 0
    assert {row.operation for row in rows} == {"sum", "bollinger"}
    assert {row.what for row in rows} == {"compute", "end to end", "peer"}
    for row in rows:
        assert 0 < row.time.low <= row.time.median <= row.time.high
        assert row.threads == "all" or row.version
        assert (row.ratio is None) == (row.by == "Warpdesk")
    assert {"cpu", "cores", "device", "versions", "load"} <= set(kept["environment"])
    assert {line["by"] for line in kept["accuracy"]["bollinger"]} >= {"Warpdesk", "TA-Lib"}
    with files["csv"].open() as file:
        assert [line["by"] for line in csv.DictReader(file)] == [row.by for row in rows]
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert "accuracy of bollinger" in printed


def test_the_bands_after_a_spike_are_exact_here_and_not_in_ta_lib(capsys):
    assert main(["bench", "bollinger", "--cpu", "--sizes=small"]) == 0

    spiked = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("1e12")]
    assert {line[-1] for line in spiked if "Warpdesk" in line} == {"True"}
    assert {line[-1] for line in spiked if "TA-Lib" in line} == {"False"}


def test_what_is_not_installed_is_left_out_and_named(monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("warpdesk_server.benchmarks.indicators.module", missing)

    assert main(["bench", "sma", "--cpu", "--sizes=small"]) == 0

    assert "left out: sma: TA-Lib (TA-Lib is not installed)" in capsys.readouterr().out


def test_what_would_install_the_missing_peers_is_said(monkeypatch, capsys):
    monkeypatch.setattr(operations, "version", lambda name: "" if name in ("TA-Lib", "newtulipy") else "1")

    assert main(["bench", "ema", "--cpu", "--sizes=small"]) == 0

    printed = capsys.readouterr().out
    assert f"to measure beside what is missing: {sys.executable} -m pip install TA-Lib newtulipy\n" in printed


def test_bench_of_a_gpu_that_is_not_there_fails_and_says_why(no_gpu, capsys):
    assert main(["bench", "sum", "--gpu", "--sizes=small"]) == 2

    assert "the test has none" in capsys.readouterr().out


def test_bench_without_a_gpu_measures_the_cpu_and_says_so(no_gpu, capsys):
    assert main(["bench", "sum", "--sizes=small"]) == 0

    assert "left out: the GPU (the test has none)" in capsys.readouterr().out


def row(median, spread=0.01, **fields):
    timing = Timing(median, median * (1 - spread), median * (1 + spread))
    return replace(Row("sma", "20 bars", "cpu", "compute", "Warpdesk", timing), **fields)


def verdict(before, now, bound=1.1):
    [line] = compared(Run(rows=[before]).document(), [now], bound)
    return line["verdict"]


def test_slower_is_beyond_the_bound_and_beyond_both_spreads():
    assert verdict(row(1.0), row(1.5)) == "slower"
    assert verdict(row(1.5), row(1.0)) == "quicker"
    assert verdict(row(1.0), row(1.08)) == "same"
    assert verdict(row(1.0), row(1.08), bound=1.05) == "slower"
    assert verdict(row(1.0, spread=0.6), row(1.5)) == "same"
    assert verdict(row(1.0), row(1.5, spread=0.5)) == "same"


def test_peers_and_new_rows_are_not_compared_and_gone_ones_are_told():
    before = Run(rows=[row(1.0, by="TA-Lib", what="peer"), row(1.0, case="gone"), row(1.0, operation="ema")]).document()
    now = [row(9.0, by="TA-Lib", what="peer"), row(9.0)]

    assert [(line["operation"], line["case"], line["verdict"]) for line in compared(before, now, 1.1)] == [
        ("sma", "gone", "gone"),
        ("ema", "20 bars", "gone"),
    ]
    assert [line["operation"] for line in compared(before, now, 1.1, ["sma"])] == ["sma"]


@pytest.fixture
def nothing_measured(monkeypatch):
    def measure(*arguments):
        raise AssertionError("it is measured before it is refused")

    monkeypatch.setattr(operations, "measure_on_cpu", measure)


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (
            {"benchmark": "indicators", "rows": [{"operation": "sma"}]},
            "holds the benchmark indicators; only operations",
        ),
        ({"benchmark": "operations", "rows": [{"operation": "sma"}]}, "is no run of the operations"),
        ({"benchmark": "operations"}, "is no run of the operations"),
        ([1], "is no run of the operations"),
        (Run(rows=[row(1.0, case="another")]).document(), "has none of the 2 cases that would be measured"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_measured(
    tmp_path, capsys, nothing_measured, held, sentence
):
    file = tmp_path / "old.json"
    file.write_text(json.dumps(held))

    assert main(["bench", "sma", "--cpu", "--sizes=small", f"--compare={file}"]) == 2

    assert sentence in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["json", "csv", "picture"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, capsys, nothing_measured, kind):
    (tmp_path / "file").touch()

    assert main(["bench", "sma", "--cpu", "--sizes=small", f"--{kind}={tmp_path / 'file' / 'a.png'}"]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().out
    assert main(["bench", "sma", "--cpu", "--sizes=small", f"--{kind}={tmp_path}"]) == 2
    assert f"{tmp_path} cannot be written" in capsys.readouterr().out


def test_a_name_of_an_operation_is_shown_the_command_that_measures_it(capsys):
    assert start(["rsi"]) == 2

    printed = capsys.readouterr().out
    assert f"no benchmark called rsi; there are {', '.join(NAMES)}" in printed
    assert "-m warpdesk bench rsi" in printed


def test_another_machine_is_named():
    machine = {"cpu": "one", "cores": 2, "device": {"name": "none"}}

    assert elsewhere({"environment": machine}, machine) == ""
    assert elsewhere({"environment": machine}, {**machine, "cores": 4}) == "cores was 2 and is 4"


@pytest.mark.parametrize(("times", "code"), [(1e-6, 1), (1e6, 0)])
def test_compare_ends_with_1_where_something_became_slower(tmp_path, capsys, times, code):
    file = tmp_path / "old.json"
    assert main(["bench", "sum", "--cpu", "--sizes=small", f"--json={file}"]) == 0
    old = json.loads(file.read_text())
    for each in old["rows"]:
        each["time"] = {name: seconds * times for name, seconds in each["time"].items()}
    file.write_text(json.dumps(old))

    assert main(["bench", "sum", "--cpu", "--sizes=small", f"--compare={file}"]) == code

    assert f"{2 * code} of 2 slower by more than 1.1 times" in capsys.readouterr().out
