"""Whatever is wrong with a request: a clear 4xx with the numbers in it, and nothing enqueued."""

import io
import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.conftest import Live, connected, live
from tests.conftest import emptied, redis_of_its_own
from warpdesk_server.kernels.catalogue import CATALOGUE

JSON = {"Content-Type": "application/json"}
NPY = {"Content-Type": "application/x-npy"}
NOBODY = "blake3:" + "0" * 64


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home, limits = tmp_path_factory.mktemp("home"), {"max_body": 300_000, "max_array": 2_000_000}
    with redis_of_its_own() as url, live(home, url, CATALOGUE, max_job_bytes=1 << 30, **limits) as api:
        yield api


@pytest.fixture
def api(running: Live) -> Iterator[Live]:
    """The API over an empty queue, which must still be empty when the test has sent what it has to send."""
    emptied(running.redis_url)
    assert running.queued() == (0, [])
    yield running
    assert running.queued() == (0, []), "something was enqueued"
    assert running.queue.jobs("local", 1)[0] == []


def answered(connection: socket.socket) -> tuple[int, str]:
    """The status and the whole body, in however many pieces they arrive."""
    answer = HTTPResponse(connection)
    answer.begin()
    return answer.status, answer.read().decode()


def prices(data: Any, dtype: str = "float64") -> dict[str, Any]:
    return {"prices": {"data": data, "dtype": dtype}}


def rsi(**changes: Any) -> dict[str, Any]:
    return {"operation": "rsi", "params": {"period": 2}, "inputs": prices([1.0, 2.0, 3.0]), **changes}


def matmul(a: Any, b: Any, **params: Any) -> dict[str, Any]:
    return {"operation": "matmul", "params": params, "inputs": {"a": {"data": a}, "b": {"data": b}}}


def changed(operation: str, **params: Any) -> dict[str, Any]:
    """The example of an operation with some of its parameters replaced."""
    example = CATALOGUE[operation].example
    return {"operation": operation, "params": {**example.params, **params}, "inputs": example.inputs}


GAUSS = {"mechanism": "discrete_gaussian", "epsilon": None}

# name: (body, pointer of the first problem, words its sentence holds)
REFUSED: dict[str, tuple[Any, str, str]] = {
    "a list for a body": ([], "", "object"),
    "a word for a body": ("rsi", "", "object"),
    "an empty object": ({}, "/operation", "required"),
    "unknown field": (rsi(colour="red"), "/colour", "colour"),
    "unknown parameter": (rsi(params={"period": 2, "speed": 1}), "/params/speed", "no field 'speed'"),
    "unknown input": (
        rsi(inputs={**prices([1.0, 2.0, 3.0]), "volume": {"data": [1.0]}}), "/inputs/volume", "it takes close"
    ),
    "unknown field of an input": (
        rsi(inputs={"prices": {"data": [1.0], "unit": "USD"}}), "/inputs/prices/unit", "no field 'unit'"
    ),
    "both an id and data": (rsi(inputs={"prices": {"array": NOBODY, "data": [1.0]}}), "/inputs/prices/data", "data"),
    "neither an id nor data": (rsi(inputs={"prices": {}}), "/inputs/prices/data", "required"),
    "missing input": (rsi(inputs={}), "/inputs/close", "needs the input 'close'"),
    "an input by both of its names": (
        rsi(inputs={**prices([1.0, 2.0, 3.0]), "close": {"data": [1.0, 2.0, 3.0]}}),
        "/inputs/close", "prices and close are one input of rsi; give it once",
    ),
    "an input by its new name, wrong inside": (
        rsi(inputs={"close": {"data": [1.0, "2"]}}), "/inputs/close/data/1", "'2' is not a number"
    ),
    "an input by its new name, of a wrong dtype": (
        rsi(inputs={"close": {"data": [1, 2], "dtype": "int64"}}), "/inputs/close", "int64 is not one of"
    ),
    "an input by its new name, that is not stored": (
        rsi(inputs={"close": {"array": NOBODY}}), "/inputs/close/array", NOBODY
    ),
    "an input by its new name, an empty list": (rsi(inputs={"close": {"data": []}}), "/inputs/close", "empty"),
    "missing parameter": (rsi(params={}), "/params/period", "required"),
    "wrong dtype": (rsi(inputs=prices([1, 2, 3], "int64")), "/inputs/prices", "int64 is not one of float64, float32"),
    "dtype that does not exist": (rsi(inputs=prices([1.0], "float16")), "/inputs/prices/dtype", "float64"),
    "rank too low": (rsi(inputs=prices(1.0)), "/inputs/prices", "rank 0, expected rank 1 or 2"),
    "rank too high": (rsi(inputs=prices([[[1.0]]])), "/inputs/prices", "[1, 1, 1] has rank 3, expected rank 1 or 2"),
    "ragged rows": (
        rsi(inputs=prices([[1.0, 2.0], [3.0]])), "/inputs/prices/data/1", "has 1 entries, the first row has 2"
    ),
    "text for numbers": (rsi(inputs=prices(["1.0", 2.0])), "/inputs/prices/data/0", "'1.0' is not a number"),
    "text for a list": (
        rsi(inputs=prices("abc")), "/inputs/prices/data",
        'data should be a number or nested lists of numbers, got "abc"',
    ),
    "an object for a list": (
        rsi(inputs=prices({})), "/inputs/prices/data",
        "data should be a number or nested lists of numbers, got an object",
    ),
    "a truth value for a list": (
        rsi(inputs=prices(True)), "/inputs/prices/data", "data should be a number or nested lists of numbers, got true"
    ),
    "a list for an input": (
        rsi(inputs={"prices": [1.0, 2.0]}), "/inputs/prices", "prices should be an object, got a list of 2"
    ),
    "a list for parameters": (rsi(params=[2]), "/params", "params should be an object, got a list of 1"),
    "an unknown convention": (
        rsi(params={"period": 2, "convention": "wilder"}), "/params/convention",
        "convention should be 'talib', 'tradingview', 'cutler' or 'ema', got \"wilder\"",
    ),
    "a client id below 0": (
        changed("secure_aggregation", survivors=[-2]), "/params/survivors/0",
        "survivors[0] should be at least 0, got -2",
    ),
    "half a pair": (changed("secure_aggregation", pairs=[[3]]), "/params/pairs/0/1", "pairs[0] has no item 1"),
    "a pair of three": (
        changed("secure_aggregation", pairs=[[3, 1, 2]]), "/params/pairs/0",
        "pairs[0] should hold at most 2 items, got 3",
    ),
    "no survivors": (
        changed("secure_aggregation", survivors=[]), "/params/survivors", "survivors should hold at least 1 item, got 0"
    ),
    "a name without end": (
        changed("secure_aggregation", round_id="x" * 129), "/params/round_id",
        "round_id should be at most 128 characters long, got 129",
    ),
    "truth values for numbers": (rsi(inputs=prices([True, 2.0])), "/inputs/prices/data/0", "true is not a number"),
    "empty array": (rsi(inputs=prices([])), "/inputs/prices", "empty: its shape is [0]"),
    "an empty array of lost shape": (
        matmul([], [[1.0]]), "/inputs/a/data",
        "an empty list cannot express a shape such as [0, 3]; matmul takes no empty array",
    ),
    "wrong pairs without end": (
        changed("secure_aggregation", pairs=[0] * 20_000), "/params", "params has 20000 errors"
    ),
    "empty axis": (rsi(inputs=prices([[], []])), "/inputs/prices", "empty: its shape is [2, 0]"),
    "infinity by overflow": (
        rsi(inputs=prices([1e308, 2.0, 3.0], "float32")), "/inputs/prices/data/0", "1e+308 is outside float32",
    ),
    "inner dimensions differ": (matmul([[1.0, 2.0]], [[1.0, 2.0]]), "/inputs/b", "2 columns meet b's 1 rows"),
    "NaN in a product": (matmul([[1.0, None]], [[1.0], [2.0]]), "/inputs/a", "the array holds a NaN"),
    "dtypes differ": (
        {"operation": "matmul", "inputs": {"a": {"data": [[1.0]]}, "b": {"data": [[1.0]], "dtype": "float32"}}},
        "/inputs/b",
        "a is float64 and b is float32",
    ),
    "period 0": (rsi(params={"period": 0}), "/params/period", "period should be at least 2, got 0"),
    "negative period": (rsi(params={"period": -14}), "/params/period", "period should be at least 2, got -14"),
    "period of 10 million": (
        rsi(params={"period": 10_000_000}), "/params/period", "period should be at most 100000, got 10000000"
    ),
    "period longer than the prices": (rsi(params={"period": 3}), "/params/period", "at least 4 prices, got 3"),
    "period with a fraction": (rsi(params={"period": 2.5}), "/params/period", "period should be an integer, got 2.5"),
    "period in words": (rsi(params={"period": "14"}), "/params/period", 'period should be an integer, got "14"'),
    "width 0": (changed("bollinger", width=0.0), "/params/width", "width should be above 0, got 0.0"),
    "epsilon zero": (changed("dp_noise", epsilon="0"), "/params/epsilon", "epsilon '0' is not above zero"),
    "epsilon negative": (changed("dp_noise", epsilon="-1"), "/params/epsilon", "not above zero"),
    "epsilon NaN": (changed("dp_noise", epsilon="NaN"), "/params/epsilon", "not a decimal number"),
    "epsilon true": (changed("dp_noise", epsilon=True), "/params/epsilon", "epsilon should be a string, got true"),
    "epsilon absurdly small": (changed("dp_noise", epsilon="1e-29"), "/params", ""),
    "epsilon below its range": (changed("dp_noise", epsilon="1e-300"), "/params/epsilon", "outside 1e-30 to 1e30"),
    "scale infinite": (changed("dp_noise", **GAUSS, scale="inf"), "/params/scale", "not a decimal number"),
    "noise that claims a budget": (
        changed("dp_noise", unaccounted=False), "/params/unaccounted", "unaccounted should be true, got false"
    ),
    "NaN in private values": (
        {**changed("dp_noise"), "inputs": {"values": {"data": [1.0, None]}}}, "/inputs/values", "holds a NaN"
    ),
    "more paths than the limit": (
        changed("monte_carlo", paths=10**9), "/params/paths", "paths should be at most 100000000, got 1000000000"
    ),
    "more path steps than the limit": (
        changed("monte_carlo", paths=10**8, steps=10_000), "/params/paths", "1,000,400,000,000 path steps"
    ),
    "a threshold nobody reaches": (changed("secure_aggregation", threshold=3), "/params", ""),
    "both secrets of one client": (
        changed("secure_aggregation", survivors=[1, 3], dropped=[3]), "/params", ""
    ),
    "a sum that could overflow": (
        changed("secure_aggregation", quantisation={"clip": "1000000", "scale": "65536", "max_weight": 1}),
        "/params",
        "2147483647",
    ),
    "a seed for noise": ({**changed("dp_noise"), "seed": 1}, "/seed", "takes no seed"),
    "a seed where nothing is drawn": (rsi(seed=1), "/seed", "draws no random words"),
    "seed of 65 bits": ({**changed("monte_carlo"), "seed": 2**64}, "/seed", "18446744073709551615"),
    "negative seed": ({**changed("monte_carlo"), "seed": -1}, "/seed", "seed should be at least 0, got -1"),
    "seed with a fraction": ({**changed("monte_carlo"), "seed": 1.5}, "/seed", "integer"),
    "unknown backend": (rsi(backend="tpu"), "/backend", "backend should be 'auto', 'gpu' or 'cpu', got \"tpu\""),
    "unknown priority": (rsi(priority="now"), "/priority", "realtime"),
    "deadline in the past": (rsi(deadline_s=0), "/deadline_s", "deadline_s should be above 0, got 0"),
    "deadline beyond a week": (rsi(deadline_s=1e9), "/deadline_s", "604800"),
    "result kept for ever": (rsi(result_ttl_s=1e12), "/result_ttl_s", "604800"),
    "unknown array": (rsi(inputs={"prices": {"array": NOBODY}}), "/inputs/prices/array", NOBODY),
    "malformed array id": (rsi(inputs={"prices": {"array": "../../etc/passwd"}}), "/inputs/prices/array", "no array"),
    "a number for an array id": (
        rsi(inputs={"prices": {"array": 7}}), "/inputs/prices/array", "array should be a string, got 7"
    ),
    "more inline numbers than allowed": (
        matmul([[1] * 200] * 200, [[1] * 200] * 200),
        "/inputs/b/data",
        "40000 numbers of shape [200, 200] are more than the 25536",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_job_is_refused_where_it_is_wrong(api: Live, name: str) -> None:
    body, pointer, words = REFUSED[name]

    answer = api.http.post("/v1/jobs", json=body)

    problem = answer.json()
    assert answer.status_code == 422, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (problem["status"], problem["code"], problem["retryable"]) == (422, "invalid-request", False)
    assert problem["errors"][0]["pointer"].startswith(pointer)
    assert words in problem["errors"][0]["detail"]
    if name != "both secrets of one client":  # which names the client twice
        assert problem["errors"] == [{"pointer": problem["errors"][0]["pointer"], "detail": problem["detail"]}]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("operation", CATALOGUE)
def test_a_sentence_about_a_parameter_names_it_and_says_what_came(api: Live, operation: str) -> None:
    """Each parameter of each operation, given values that few of them take."""
    for field in CATALOGUE[operation].params.model_fields:
        for value in (-1, 1.5, 10**13, "x", [], [[1]], {}, True):
            answer = api.http.post("/v1/jobs", json=changed(operation, **{field: value, "nonsense": 1}))
            problems = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
            names = ", ".join(CATALOGUE[operation].params.model_fields)
            assert problems.pop("/params/nonsense") == f"there is no field 'nonsense' here; there are {names}"
            for pointer, sentence in problems.items():
                assert pointer.startswith(f"/params/{field}")
                assert re.match(
                    rf"(\w+(\[\d\])+|{field}) (should .*, got .+|.* is not .+|has no item \d)$|the field '", sentence
                )


def test_every_problem_is_told_at_once(api: Live) -> None:
    answer = api.http.post("/v1/jobs", json=rsi(params={"period": 0, "speed": 1}, inputs=prices([[[]]], "int64")))

    pointers = [error["pointer"] for error in answer.json()["errors"]]
    assert {"/params/period", "/params/speed", "/inputs/prices"} <= set(pointers)


def test_an_unknown_operation_is_refused_with_the_ones_that_exist(api: Live) -> None:
    answer = api.http.post("/v1/jobs", json=rsi(operation="fft"))

    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-operation")
    assert answer.json()["detail"] == f"There is no operation 'fft'; GET /v1/operations lists all {len(CATALOGUE)}"
    assert api.http.get("/v1/operations/fft").status_code == 404
    for name, near in (("mcad", "macd"), ("Bolinger", "bollinger"), ("BBANDS", "bollinger"), ("stochf", "stochastic")):
        for answer in (api.http.post("/v1/jobs", json=rsi(operation=name)), api.http.get(f"/v1/operations/{name}")):
            assert f"There is no operation {name!r}; near are {near}" in answer.json()["detail"]
            assert len(answer.json()["detail"]) < 200


def test_a_job_that_fits_nowhere_is_refused_with_the_bytes(api: Live) -> None:
    rows = np.zeros((1, 200_000))
    file = io.BytesIO()
    np.save(file, rows)
    row = api.http.put("/v1/arrays", content=file.getvalue(), headers=NPY).json()["id"]
    file = io.BytesIO()
    np.save(file, rows.T)
    column = api.http.put("/v1/arrays", content=file.getvalue(), headers=NPY).json()["id"]

    answer = api.http.post(
        "/v1/jobs", json={"operation": "matmul", "inputs": {"a": {"array": column}, "b": {"array": row}}}
    )

    assert (answer.status_code, answer.json()["code"]) == (422, "job-too-large")
    assert answer.json()["detail"] == "The job needs 320003200000 bytes while it runs; the limit is 1073741824"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"operation": "rsi",}',
        b"{'operation': 'rsi'}",
        b'{"operation": "rsi"} {}',
        b'{"seed": NaN}',
        b'{"seed": Infinity}',
        b'{"operation": "\xff\xfe"}',
        b'{"operation": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"seed": ' + b"9" * 100_000 + b"}",
        b"PK\x03\x04",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_not_json_is_refused(api: Live, body: bytes) -> None:
    answer = api.http.post("/v1/jobs", content=body, headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (400, "malformed-json")
    assert answer.json()["detail"].startswith(f"The body of {len(body)} bytes is not JSON: ")


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"operation": "rsi", "operation": "sma"}', "operation"),
        ('{"operation": "rsi", "params": {"period": 2, "period": 14}}', "period"),
        ('{"operation": "rsi", "inputs": {"prices": {"data": [1.0], "data": [2.0]}}}', "data"),
        ('{"operation": "rsi", "params": [[{"a": {"b": 1, "b": 1}}]]}', "b"),
        ('{"operation": "rsi", "\\u006fperation": "rsi"}', "operation"),
        ('{"": 1, "": 2}', ""),
        ('{"inputs": {"prices": {"data": [' + "1.0," * 20_000 + '1.0]}}, "seed": 1, "seed": 2}', "seed"),
    ],
    ids=lambda value: value[-30:],
)
def test_a_key_that_is_given_twice_is_refused_by_name(api: Live, body: str, key: str) -> None:
    answer = api.http.post("/v1/jobs", content=body, headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (400, "duplicate-key")
    assert answer.json()["detail"].startswith(f'The key "{key}" is given twice in one object, at line 1 column ')


def test_a_key_may_come_again_in_another_object(api: Live) -> None:
    body = '{"operation": "fft", "params": {"operation": {"operation": 1}}, "inputs": {"params": {"data": 1}}}'

    answer = api.http.post("/v1/jobs", content=body, headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-operation")


ROUTES = [
    ("GET", "/v1/operations", ()),
    ("GET", "/v1/operations/rsi", ()),
    ("PUT", "/v1/arrays", ("columns",)),
    ("GET", f"/v1/arrays/{NOBODY}", ()),
    ("DELETE", f"/v1/arrays/{NOBODY}", ()),
    ("POST", "/v1/jobs", ()),
    ("GET", "/v1/jobs", ("status", "operation", "since", "until", "owner", "limit", "cursor")),
    ("GET", "/v1/jobs/job_1", ()),
    ("DELETE", "/v1/jobs/job_1", ()),
    ("POST", "/v1/jobs/job_1/cancel", ()),
    ("GET", "/v1/jobs/job_1/result", ()),
    ("GET", "/v1/jobs/job_1/result/rsi", ()),
    ("GET", "/performance-metrics", ("hours",)),
    *(("GET", path, ()) for path in ("/livez", "/readyz", "/health", "/gpu-health", "/gpu-memory")),
    *(("GET", path, ()) for path in ("/metrics", "/problems/not-found", "/docs")),
]


@pytest.mark.parametrize(("method", "path", "names"), ROUTES, ids=lambda value: str(value))
def test_an_unknown_query_parameter_is_refused_with_those_there_are(
    api: Live, method: str, path: str, names: tuple[str, ...]
) -> None:
    answer = api.http.request(method, path, params={"limits": "3"})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/query/limits"]
    assert answer.json()["detail"].endswith(
        f"has no query parameter 'limits'; it takes {' and '.join(names) or 'none'}"
    )


def test_head_of_an_array_takes_no_query_parameter_either(api: Live) -> None:
    assert api.http.head(f"/v1/arrays/{NOBODY}", params={"limits": "3"}).status_code == 422


def test_every_unknown_query_parameter_is_named_once(api: Live) -> None:
    answer = api.http.get("/v1/jobs?limit=3&a=1&b/c=2&a=3&=4")

    assert [error["pointer"] for error in answer.json()["errors"]] == ["/query/a", "/query/b~1c", "/query/"]


@pytest.mark.parametrize("second", ["2", "1"])
def test_a_query_parameter_with_one_value_that_is_given_twice_is_refused_by_name(api: Live, second: str) -> None:
    answer = api.http.get(f"/v1/jobs?limit=1&limit={second}")

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["errors"] == [
        {"pointer": "/query/limit", "detail": "limit is given 2 times; it takes one value"}
    ]


def test_columns_are_refused_beside_a_body_that_has_none(api: Live) -> None:
    npy = {"Content-Type": "application/x-npy"}

    answer = api.http.put("/v1/arrays?columns=Close", content=b"\x93NUMPY", headers=npy)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/query/columns"]


@pytest.mark.parametrize("name", ["Volume", "Close"])
def test_a_column_that_is_not_there_or_there_twice_is_refused_where_it_was_asked_for(api: Live, name: str) -> None:
    csv = {"Content-Type": "text/csv"}

    answer = api.http.put(f"/v1/arrays?columns={name}", content=b"Close,Close\n1,2\n", headers=csv)

    assert (answer.status_code, answer.json()["code"]) == (422, "malformed-csv")
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/query/columns"]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("limit=0", 'limit should be at least 1, got "0"'),
        ("limit=201", 'limit should be at most 200, got "201"'),
        ("limit=ten", 'limit should be an integer, got "ten"'),
        ("cursor=7", 'cursor should match ^job_[0-9a-f]{32}$, got "7"'),
    ],
)
def test_a_query_parameter_that_makes_no_sense_is_refused_with_its_value(api: Live, query: str, sentence: str) -> None:
    answer = api.http.get(f"/v1/jobs?{query}")

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["errors"] == [{"pointer": f"/query/{query.partition('=')[0]}", "detail": sentence}]


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_a_job_that_is_not_called_json_is_refused(api: Live, media_type: str) -> None:
    """A web page may send these across origins without asking; JSON it may not."""
    answer = api.http.post("/v1/jobs", content=json.dumps(rsi()), headers={"Content-Type": media_type})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")


@pytest.mark.parametrize(("method", "path", "headers"), [("POST", "/v1/jobs", JSON), ("PUT", "/v1/arrays", NPY)])
def test_a_compressed_body_is_refused(api: Live, method: str, path: str, headers: dict[str, str]) -> None:
    answer = api.http.request(method, path, content=b"\x1f\x8b", headers={**headers, "Content-Encoding": "gzip"})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")
    assert answer.json()["detail"] == "Send the body without compression; Content-Encoding is 'gzip'"


@pytest.mark.parametrize(
    ("method", "path", "media_type", "limit"),
    [
        ("POST", "/v1/jobs", "application/json", 300_000),
        ("PUT", "/v1/arrays", "text/csv", 2_000_000),
        ("PUT", "/v1/arrays", "application/x-npy", 2_010_000),
    ],
)
def test_a_body_over_the_limit_is_refused_before_it_is_read(
    api: Live, method: str, path: str, media_type: str, limit: int
) -> None:
    """Only the head is sent: the answer comes although no byte of the body does."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media_type}\r\n"
    head += f"Content-Length: {limit + 1}\r\n\r\n"
    with connected(api) as connection:
        connection.sendall(head.encode())
        status, answer = answered(connection)

    assert status == 413
    assert f"The body is {limit + 1} bytes; the limit is {limit}" in answer


@pytest.mark.parametrize(
    ("method", "path", "media_type"),
    [("POST", "/v1/jobs", "application/json"), ("PUT", "/v1/arrays", "text/csv")],
)
def test_a_chunked_body_is_cut_at_the_limit(api: Live, method: str, path: str, media_type: str) -> None:
    """A body without a length that never ends: the answer comes while it is still being sent."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media_type}\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with connected(api) as connection:
        connection.sendall(head.encode())
        for _ in range(40):  # 2.6 MB; the end of the body is never sent
            connection.sendall(piece)
        status, answer = answered(connection)

    assert status == 413
    assert "body-too-large" in answer


def test_an_npy_that_is_longer_than_it_says_is_cut_off(api: Live) -> None:
    """Chunked, so only the header's shape says how much may come."""
    file = io.BytesIO()
    np.save(file, np.zeros(4))
    with connected(api) as connection:
        connection.sendall(
            b"PUT /v1/arrays HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-npy\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for piece in (file.getvalue(), *[b"\0" * 65536] * 20):
            connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        status, answer = answered(connection)

    assert status == 422
    assert "32 bytes of numbers; the body holds more" in answer


JOB_IDS = ["job_" + "0" * 32, "job_1", "0" * 36, "..", "%2e%2e%2fetc", "job_" + "g" * 32, "job_%00", "ä", "x" * 5000]


@pytest.mark.parametrize("job_id", JOB_IDS)
@pytest.mark.parametrize(
    ("method", "tail"), [("GET", ""), ("GET", "/result"), ("GET", "/result/rsi"), ("POST", "/cancel"), ("DELETE", "")]
)
def test_a_job_that_does_not_exist_is_not_found(api: Live, job_id: str, method: str, tail: str) -> None:
    answer = api.http.request(method, f"{api.url}/v1/jobs/{job_id}{tail}")

    assert answer.status_code in ({404, 405, 307} if job_id == ".." else {404})
    assert answer.json()["code"] in ("unknown-job", "not-found", "method-not-allowed")


@pytest.mark.parametrize(
    "array_id", [NOBODY, "blake3:1", "0" * 64, "blake3:" + "G" * 64, "%2e%2e%2fsecret", "blake3:%00"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_array_that_does_not_exist_is_not_found(api: Live, array_id: str, method: str) -> None:
    answer = api.http.request(method, f"{api.url}/v1/arrays/{array_id}")

    assert (answer.status_code, answer.json()["code"]) in [(404, "unknown-array"), (404, "not-found")]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not-found"),
        ("GET", "/v2/jobs", 404, "not-found"),
        ("GET", "/v1/jobs/", 404, "not-found"),
        ("PATCH", "/v1/jobs", 405, "method-not-allowed"),
        ("DELETE", "/v1/jobs", 405, "method-not-allowed"),
        ("GET", "/problems/nonsense", 404, "not-found"),
    ],
)
def test_a_path_or_method_that_does_not_exist_is_a_problem_document(
    api: Live, method: str, path: str, status: int, code: str
) -> None:
    answer = api.http.request(method, path)

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/jobs", {"GET", "POST"}),
        ("PATCH", f"/v1/arrays/{NOBODY}", {"GET", "HEAD", "DELETE"}),
        ("PUT", "/v1/jobs/job_1", {"GET", "DELETE"}),
        ("DELETE", "/v1/arrays", {"GET", "PUT"}),
        ("POST", "/openapi.json", {"GET", "HEAD"}),
    ],
)
def test_a_refused_method_is_answered_with_every_method_of_the_path(
    api: Live, method: str, path: str, allowed: set[str]
) -> None:
    answer = api.http.request(method, path)

    assert (answer.status_code, answer.json()["code"]) == (405, "method-not-allowed")
    assert sorted(answer.headers["Allow"].split(", ")) == sorted(allowed)
    assert answer.json()["detail"] == f"{path} does not take {method}; it takes {answer.headers['Allow']}"


def test_the_allowed_methods_of_each_path_are_those_of_the_document(api: Live) -> None:
    paths = api.http.get("/openapi.json").json()["paths"]
    paths["/v1/jobs/batch"] |= paths["/v1/jobs/{job_id}"]  # to ask for it, it is the id of a job
    for path, routes in paths.items():
        allowed = api.http.patch(path).headers["Allow"].split(", ")

        assert sorted(allowed) == sorted(method.upper() for method in routes)


def test_the_answers_of_an_api_are_neither_sniffed_nor_framed_nor_kept(api: Live) -> None:
    headers = httpx.get(f"{api.url}/v1/jobs", headers={"X-Request-ID": "mine-1"}).headers

    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Request-ID"] == "mine-1"
    assert "Access-Control-Allow-Origin" not in headers
