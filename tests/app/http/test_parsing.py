"""What parsing a body costs before it is refused: memory, objects and sentences are bounded."""

import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.app.access.test_auth import bearer
from tests.app.conftest import SCALE, Live
from tests.waiting import wait_until
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.arrays import csv_upload, table
from warpdesk_server.app.http import bodies
from warpdesk_server.app.jobs import operations
from warpdesk_server.app.jobs.operations import submission
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.services import Services
from warpdesk_server.kernels.problems import MOST_LISTED

MIB = 1 << 20
CSV = {"Content-Type": "text/csv"}
JSON = {"Content-Type": "application/json"}

# 10,000 columns of numbers: as many as a CSV may have.
WIDE_ROW = ",".join(["1.5"] * 10_000).encode() + b"\n"


class Peak:
    """How far the peak memory of this process rises from now on. The API runs in this process."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): VmHWM begins anew
        self._before = self._read("VmRSS")

    def grown(self) -> int:
        return self._read("VmHWM") - self._before

    @staticmethod
    def _read(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def csv_processes() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if table.__file__ in child.cmdline():
                found.append(child)
        except psutil.Error:  # the process has ended
            continue
    return found


def test_a_csv_of_one_long_row_is_refused_for_little_memory(serve_api: Callable[..., Any]) -> None:
    body = b"1," * (MIB - 1) + b"1"

    with serve_api() as api:
        peak = Peak()
        answer = api.http.put("/v1/arrays", content=body, headers=CSV)

        assert (answer.status_code, answer.json()["code"]) == (422, "malformed-csv")
        assert answer.json()["detail"] == f"Line 1 has {MIB} cells; a CSV may have at most 10000 columns"
        assert peak.grown() < 100 * MIB


def test_a_large_csv_is_stored_for_little_memory_while_others_are_answered(serve_api: Callable[..., Any]) -> None:
    body = WIDE_ROW * 100  # 4 MB

    with serve_api() as api, ThreadPoolExecutor(1) as threads:
        api.http.put("/v1/arrays", content=WIDE_ROW, headers=CSV)
        peak = Peak()
        upload = threads.submit(api.http.put, "/v1/arrays", content=body, headers=CSV, timeout=100)
        wait_until(csv_processes)
        meanwhile = api.http.get("/livez")
        first = "livez" if not upload.done() else "upload"
        answer = upload.result()

        assert (first, meanwhile.status_code, answer.status_code) == ("livez", 200, 201)
        assert answer.json()["shape"] == [10_000, 100]
        assert peak.grown() < 40 * MIB


def test_a_csv_that_takes_too_much_memory_ends_its_own_process_alone(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CSV_MEMORY", 24 * MIB)
    long_row = b'"\n",' + b"12," * 9000  # a row of a cell that goes over two lines, and so on

    with serve_api() as api:
        answer = api.http.put("/v1/arrays", content=long_row * 40, headers=CSV)
        again = api.http.put("/v1/arrays", content=b"1\n2\n", headers=CSV)

    assert (answer.status_code, answer.json()["code"]) == (422, "malformed-csv")
    assert answer.json()["detail"] == "Reading the CSV takes more than 32 MiB"
    assert again.status_code == 201


def test_a_csv_that_takes_too_long_is_refused(serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CSV_SECONDS", 1)

    with serve_api() as api:
        answer = api.http.put("/v1/arrays", content=WIDE_ROW * 400, headers=CSV, timeout=100)

    assert (answer.status_code, answer.json()["code"]) == (422, "malformed-csv")
    assert answer.json()["detail"] == "Reading the CSV takes more than 1 s of a processor"


def test_a_csv_whose_process_is_killed_may_be_sent_again(serve_api: Callable[..., Any]) -> None:
    with serve_api() as api, ThreadPoolExecutor(1) as threads:
        upload = threads.submit(api.http.put, "/v1/arrays", content=WIDE_ROW * 100, headers=CSV, timeout=100)
        wait_until(csv_processes)
        for process in csv_processes():
            process.kill()
        answer = upload.result()
        again = api.http.put("/v1/arrays", content=b"1\n2\n", headers=CSV)

    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert (answer.json()["retryable"], answer.headers["Retry-After"]) == (True, "10")
    assert again.status_code == 201


@pytest.mark.parametrize(
    ("header", "query", "status", "sentence"),
    [
        (b"Day,Close\n", "?columns=Open", 422, "There is no column 'Open'; there are Day, Close"),
        (b"Day,Close\n", "?columns=Close", 201, ""),
        (b"Day,Close\nMon,1\n", "", 422, "'Mon' is not a number; column Close is numeric"),
    ],
)
@pytest.mark.parametrize("rows", [1, limits.CSV_SMALL // 4], ids=["small", "large"])
def test_small_and_large_csv_files_are_answered_alike(
    api: Live, rows: int, header: bytes, query: str, status: int, sentence: str
) -> None:
    answer = api.http.put(f"/v1/arrays{query}", content=header + b"Tu,\n" * rows, headers=CSV)

    assert answer.status_code == status
    assert sentence in answer.json().get("detail", "")
    assert [problem["pointer"] for problem in answer.json().get("errors", [])] == ["/query/columns"] * ("Open" in query)


class Reading:
    """Large CSV files being read. Each read stops until `let_go_on` releases it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = list[str]()  # the first character of each
        self._go_on = threading.Semaphore(0)
        self._from_csv = csv_upload.from_csv
        monkeypatch.setattr(csv_upload, "from_csv", self._read)

    def _read(self, body: bytes, *arguments: Any) -> Any:
        if not csv_upload.is_small_csv(body):
            self.begun.append(body[:1].decode())
            assert self._go_on.acquire(timeout=100)
        return self._from_csv(body, *arguments)

    def let_go_on(self, count: int) -> None:
        self._go_on.release(count)


def large_csv(first: str) -> bytes:
    return f"{first},2,3\n".encode() * (limits.CSV_SMALL // 6 + 1)


def test_a_large_csv_waits_for_another_of_its_key_and_is_refused_if_that_takes_long(
    serve_api: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [create_key(tmp_path / "home", name, ["submit"]) for name in ("a", "b", "c")]
    reading = Reading(monkeypatch)
    with serve_api() as api, ThreadPoolExecutor(3) as threads:

        def send(key: str, body: bytes) -> Any:
            return api.http.put("/v1/arrays", content=body, headers={**CSV, **bearer(key)}, timeout=100)

        sent = [threads.submit(send, keys[0], large_csv("1"))]
        wait_until(lambda: len(reading.begun) == 1)
        monkeypatch.setattr(limits, "CSV_WAIT", 0.1)
        refused = send(keys[0], large_csv("2"))
        sent.append(threads.submit(send, keys[1], large_csv("3")))
        wait_until(lambda: len(reading.begun) == 2)
        full, small = send(keys[2], large_csv("4")), send(keys[2], b"1\n2\n")
        monkeypatch.setattr(limits, "CSV_WAIT", 100.0)
        sent.append(threads.submit(send, keys[0], large_csv("5")))
        reading.let_go_on(3)
        read = [answer.result().status_code for answer in sent]

    assert (read, small.status_code, reading.begun) == ([201] * 3, 201, ["1", "3", "5"])
    assert (refused.status_code, refused.json()["code"]) == (429, "share-used-up")
    assert (full.status_code, full.json()["code"]) == (503, "busy")
    assert "this one waited 0.1 seconds for its turn" in full.json()["detail"]
    assert refused.headers["Retry-After"] == full.headers["Retry-After"] == "1"


def test_keys_with_many_large_csv_files_keep_another_from_its_turn_no_longer_than_by_one_each(
    serve_api: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: create_key(tmp_path / "home", name, ["submit"]) for name in "123"}
    monkeypatch.setattr(limits, "CSV_WAIT", 100.0)
    reading = Reading(monkeypatch)
    with serve_api() as api, ThreadPoolExecutor(17) as threads:

        def send(name: str) -> Any:
            headers = {**CSV, **bearer(keys[name])}
            return threads.submit(api.http.put, "/v1/arrays", content=large_csv(name), headers=headers, timeout=100)

        waiting = api.app.state.services.csvs.present
        sent = [send(name) for name in "12" * 8]
        wait_until(lambda: waiting.total() == 16 and len(reading.begun) == 2)
        sent.append(send("3"))
        wait_until(lambda: waiting.total() == 17)
        reading.let_go_on(3)
        wait_until(lambda: len(reading.begun) == 5)
        served = reading.begun[2:]  # one of each key: those of keys 1 and 2 came earlier
        reading.let_go_on(14)
        assert {answer.result().status_code for answer in sent} == {201}

    assert "3" in served


def _keyed(count: int, item: str = "0") -> str:
    return "{" + ",".join(f'"k{number}":{item}' for number in range(count)) + "}"


@pytest.mark.parametrize(
    ("path", "body", "pointer", "sentence"),
    [
        (
            "/v1/jobs",
            '{"inputs":' + _keyed(5000, "{}") + "}",
            "",
            "The body has more than 1000 keys, which is the limit",
        ),
        ("/v1/jobs", _keyed(5000), "", "The body has more than 1000 keys, which is the limit"),
        ("/v1/jobs", "[" + "[]," * 50_000 + "[]]", "", "The body has more than 4000 values and lists"),
        ("/v1/jobs", "[" * 7000 + "]" * 7000, "", "The body has more than 4000 values and lists"),
        ("/v1/jobs", "[" + '"",' * 50_000 + '""]', "", "The body has more than 4000 values and lists"),
        ("/v1/jobs", '{"operation":"scale","inputs":' + _keyed(33) + "}", "/inputs", "33 entries; the limit is 32"),
        ("/v1/jobs", '{"operation":"scale","params":' + _keyed(65) + "}", "/params", "65 entries; the limit is 64"),
        ("/v1/budgets", _keyed(5000), "", "The body has more than 1000 keys, which is the limit"),
        ("/v1/budgets/budget_1/quote", _keyed(5000), "", "The body has more than 1000 keys, which is the limit"),
        (
            "/v1/secagg/rounds",
            "[" + "[]," * 50_000 + "[]]",
            "",
            "The body has more than 4000 values and lists",
        ),
        ("/v1/secagg/rounds", _keyed(5000), "", "The body has more than 1000 keys, which is the limit"),
    ],
)
def test_a_body_of_too_many_parts_is_refused_before_it_is_parsed(
    api: Live, path: str, body: str, pointer: str, sentence: str
) -> None:
    answer = api.http.post(path, content=body, headers={**JSON, "Idempotency-Key": "1"})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    [problem] = answer.json()["errors"]
    assert problem["pointer"] == pointer
    assert sentence in problem["detail"]


@pytest.mark.parametrize(
    "text", [':,[{"' * 5000, ":" * 150_000, '\\"' * 9 + ":" * 5000, "\\" * 9 + ":" * 5000 + "\\" * 4]
)
def test_marks_of_json_within_strings_are_not_counted(api: Live, text: str) -> None:
    answer = api.http.post("/v1/jobs", json={**SCALE, "backend": text})

    [problem] = answer.json()["errors"]
    assert problem["pointer"] == "/backend"


def test_an_array_of_single_rows_is_taken_up_to_the_limit_of_numbers(api: Live) -> None:
    body = {**SCALE, "inputs": {"values": {"data": [[1.0]] * 1000}}}

    assert api.http.post("/v1/jobs", json=body).status_code == 202


def test_lists_without_numbers_are_refused_for_little_memory(serve_api: Callable[..., Any]) -> None:
    body = b'{"operation":"scale","inputs":{"values":{"data":[' + b"[]," * 1_300_000 + b"[]]}}}"

    with serve_api() as api:
        peak = Peak()
        answer = api.http.post("/v1/jobs", content=body, headers=JSON)

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
        assert "more than 133072 values and lists, which is the limit; upload arrays" in answer.json()["detail"]
        assert peak.grown() < 50 * MIB


_VALUES = limits.JSON_VALUES * 65_536 + 2 * limits.JSON_KEYS - 20
_DECIMALS = '{"operation":"dp_noise","params":{"epsilon":0.5},"inputs":{"values":{"data":['


@pytest.mark.parametrize(
    "body",
    [
        _DECIMALS + ",".join(["0.12345678901234567890"] * _VALUES) + "]}}}",
        _DECIMALS + ",".join(["[0.1234567890123456]"] * (_VALUES // 2)) + "]}}}",
        _DECIMALS + ",".join([f'"{number:012}"' for number in range(_VALUES)]) + "]}}}",
        '{"operation":"dp_noise","params":{"epsilon":0.5},"x":"\U0001f600' + "a" * (4 * MIB - 100) + '"}',
        '{"operation":"dp_noise","params":{"epsilon":0.5},"x":"\U0001f600' + ":" * (4 * MIB - 100) + '"}',
        '{"operation":"dp_noise","params":{"epsilon":0.5},"x":"\U0001f600' + "\\n" * (2 * MIB - 100) + '"}',
    ],
    ids=["decimals", "rows", "texts", "long text", "marks", "escapes"],
)
def test_parsing_takes_no_more_memory_than_follows_from_the_counts(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    sent, taken = body.encode(), list[int]()
    parse = operations.parsed

    def measured(desk: Services, body: bytes) -> object:
        tracemalloc.start()
        try:
            return parse(desk, body)
        finally:
            taken.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    monkeypatch.setattr(operations, "parsed", measured)
    with serve_api() as api:
        assert len(sent) <= api.settings.max_body
        answer = api.http.post("/v1/jobs", content=sent, headers=JSON)

    assert answer.status_code == 422, "none of them is a right submission"
    [most] = taken
    assert most > len(sent) / 4, "it was parsed"
    assert most < limits.JSON_MEMORY_OF_A_BYTE * len(sent) + limits.JSON_MEMORY_OF_A_VALUE * _VALUES


def test_large_bodies_are_parsed_one_of_a_key_at_once_and_another_keys_beside_it(
    serve_api: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy, calm, other = (create_key(tmp_path / "home", name, ["submit"]) for name in ("greedy", "calm", "other"))
    large = {**SCALE, "inputs": {"values": {"data": [1.0] * 20_000}}}
    parse, entered, go_on = bodies.parse, list[int](), threading.Event()

    def noted(body: bytes) -> object:
        if len(body) > limits.JSON_SMALL:
            entered.append(len(body))
            assert go_on.wait(60)
        return parse(body)

    monkeypatch.setattr(bodies, "parse", noted)
    with serve_api() as api, ThreadPoolExecutor(4) as threads:
        held = api.app.state.services.buffers.held

        def send(key: str) -> Any:
            return threads.submit(api.http.post, "/v1/jobs", json=large, headers=bearer(key), timeout=100)

        answers = [send(greedy) for _ in range(3)]
        wait_until(lambda: entered and held() == 3 * entered[0])
        answers.append(send(calm))
        wait_until(lambda: len(entered) == 2)
        small = api.http.post("/v1/jobs", json=SCALE, headers=bearer(other))
        at_once = len(entered)
        go_on.set()
        taken = [answer.result().status_code for answer in answers]

    assert (at_once, small.status_code, taken) == (2, 202, [202] * 4)


def test_no_more_problems_are_built_than_are_told(api: Live) -> None:
    body = {**SCALE, **{f"k{number}": 0 for number in range(900)}}

    with pytest.raises(Refusal) as refusal:
        submission(body)

    assert len(refusal.value.problems) == MOST_LISTED
    assert refusal.value.detail.startswith("900 errors: ")
    assert refusal.value.detail.endswith(f"and {900 - MOST_LISTED} more")
