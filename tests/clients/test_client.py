"""The Python client against a real service: NumPy in, NumPy out, errors as exceptions."""

import asyncio
import pickle
import re
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import polars as pl
import pytest

from examples.prices import sp500
from tests.conftest import Service, free_port, wait_until_ready
from warpdesk import (
    AsyncClient,
    Busy,
    Client,
    JobFailed,
    JobTimeout,
    NotFound,
    RequestRefused,
    RoundTimeout,
    Unauthorized,
    Unreachable,
    WarpdeskError,
    errors,
    ta,
)
from warpdesk.arrays import INLINE, AnyArray, as_array
from warpdesk.client import Job
from warpdesk.datasets import as_time, as_times, nanoseconds_of
from warpdesk.models import JobDescription

pytestmark = pytest.mark.timeout(500)

LONG: dict[str, Any] = {
    "payoff": "european",
    "option": "call",
    "spot": 100.0,
    "strike": 100.0,
    "volatility": 0.2,
    "maturity": 1.0,
    "steps": 1000,
    "paths": 20_000_000,
}


def test_params_in_a_mapping_are_sent_beside_those_by_name(client: Client) -> None:
    close = sp500().close[:50]
    named = client.run("bollinger", prices=close, period=5, width=1.5)
    for result in (
        client.run("bollinger", params={"prices": close, "period": 5, "width": 1.5}),
        client.result(client.submit("bollinger", prices=close, width=1.5, params={"period": 5})),
    ):
        assert result["upper"].tobytes() == named["upper"].tobytes()
    with pytest.raises(WarpdeskError) as refused:
        client.submit("bollinger", prices=close, params={"backend": "cpu"})
    assert [error.pointer for error in refused.value.errors] == ["/params/backend"]


@pytest.mark.parametrize("convert", [list, np.array])
def test_an_earlier_name_of_an_input_gives_the_same_bytes(client: Client, convert: Any) -> None:
    close = convert(sp500().close[:40].tolist())
    for operation in ("sma", "ema", "rsi", "bollinger"):
        now, before = client.run(operation, close=close, period=5), client.run(operation, prices=close, period=5)
        assert {name: array.tobytes() for name, array in now.items()} == {
            name: array.tobytes() for name, array in before.items()
        }
    with pytest.raises(RequestRefused, match="close and prices are one input of rsi; give it once"):
        client.run("rsi", close=close, prices=close, period=5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_array_comes_back_with_its_dtype_and_its_nan(client: Client, dtype: str) -> None:
    result = client.run("sma", prices=np.array([1, 2, 3, 4, 5], dtype=dtype), period=3)
    assert result["sma"].dtype == dtype
    np.testing.assert_array_equal(result["sma"], np.array([np.nan, np.nan, 2, 3, 4], dtype=dtype))


def test_a_large_array_gives_the_same_bytes_as_its_inline_beginning(client: Client) -> None:
    close = sp500().close
    assert len(close) > INLINE
    whole = client.run("rsi", prices=close, period=14)
    begun = client.run("rsi", prices=close[:INLINE], period=14)
    assert whole["rsi"][:INLINE].tobytes() == begun["rsi"].tobytes()


def test_lists_big_endian_fortran_and_strided_arrays_are_sent_as_the_numbers_they_are(client: Client) -> None:
    plain = np.arange(6.0).reshape(2, 3)
    right = np.eye(3)
    for left in (plain.tolist(), [[0, 1, 2], [3, 4, 5]], plain.astype(">f8"), np.asfortranarray(plain)):
        np.testing.assert_array_equal(client.run("matmul", a=left, b=right)["product"], plain)
    strided = np.repeat(plain, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(client.run("matmul", a=strided, b=right)["product"], plain)


def test_an_uploaded_array_is_downloaded_unchanged_and_serves_several_jobs(client: Client) -> None:
    numbers = np.random.default_rng(1).normal(size=(120, 90))
    kept = client.upload(numbers)
    assert (kept.dtype, kept.shape, kept.has_nan) == ("float64", [120, 90], False)
    assert client.download(kept).tobytes() == numbers.tobytes()
    for right in (np.eye(90), np.ones((90, 1))):
        np.testing.assert_allclose(client.run("matmul", a=kept, b=right)["product"], numbers @ right, rtol=1e-12)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_dates_become_nanoseconds_whatever_their_unit(unit: str) -> None:
    times = np.array(["2024-01-02T14:30:00", "2024-01-02T14:30:01"], f"datetime64[{unit}]")
    assert as_array("time", times, ("int64",)).tolist() == [1_704_205_800_000_000_000, 1_704_205_801_000_000_000]
    with pytest.raises(TypeError, match="time has the dtype datetime64"):
        as_array("time", times, ("float64",))


def test_a_large_array_stays_where_it_was_read_into_and_is_writable(client: Client) -> None:
    numbers = np.random.default_rng(2).normal(size=(1 << 20, 2))
    kept = client.upload(numbers)
    tracemalloc.start()
    try:
        own = client.download(kept)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert own.tobytes() == numbers.tobytes()
    assert most < 1.5 * numbers.nbytes
    own[0] = 0.0


def test_an_asynchronous_client_reads_an_array_alike(client: Client) -> None:
    numbers = np.random.default_rng(2).normal(size=(300, 70))

    async def there_and_back() -> AnyArray:
        async with AsyncClient(client._exchange.url) as connected:
            return await connected.download(await connected.upload(numbers))

    own = asyncio.run(there_and_back())
    assert own.tobytes() == numbers.tobytes()
    own[0] = 0.0


def test_files_are_uploaded_as_they_are(client: Client, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4, dtype=np.int32))
    assert client.upload(tmp_path / "a.npy").dtype == "int32"
    (tmp_path / "a.csv").write_text("1.5,2\n3,4\n")
    # A column is a series, and series lie along the last axis.
    assert client.download(client.upload(tmp_path / "a.csv")).tolist() == [[1.5, 3.0], [2.0, 4.0]]
    with pytest.raises(ValueError, match=r"a.xls is none of .npy, .csv"):
        client.upload(tmp_path / "a.xls")


def test_the_columns_of_a_csv_file_are_chosen_by_name_in_the_order_wanted(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("Day,Open & low,Close\n2024-01-02,1.5,2\n2024-01-03,3,\n")
    np.testing.assert_array_equal(client.download(client.upload(file, columns=["Close"])), [2.0, np.nan])
    chosen = client.download(client.upload(file, columns=["Close", "Open & low"]))
    np.testing.assert_array_equal(chosen, [[2.0, np.nan], [1.5, 3.0]])
    assert client.download(client.upload(file, columns="Open & low")).tolist() == [1.5, 3.0]
    with pytest.raises(WarpdeskError, match="There is no column 'Low'; there are Day, Open & low, Close"):
        client.upload(file, columns=["Low"])

    async def at_once() -> list[float]:
        async with AsyncClient(client._exchange.url) as connected:
            kept = await connected.upload(file, columns=["Open & low"])
            return list((await connected.download(kept)).tolist())

    assert asyncio.run(at_once()) == [1.5, 3.0]


@pytest.mark.parametrize("name", ["Open,Close", "", " "])
def test_a_column_the_service_would_not_take_as_one_name_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Open,Close\n1,2\n")
    with Client("http://127.0.0.1:9") as client, pytest.raises(ValueError, match="cannot be asked for as a column"):
        client.upload(tmp_path / "a.csv", columns=[name])


def test_columns_are_chosen_of_csv_files_only(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    with Client("http://127.0.0.1:9") as client:
        for array in (tmp_path / "a.npy", np.ones(3)):
            with pytest.raises(ValueError, match=r"from a \.csv file only"):
                client.upload(array, columns=["Close"])


def test_submit_wait_result_list_and_delete(client: Client) -> None:
    jobs = [client.submit("matmul", a=[[float(n)]], b=[[1.0]]) for n in range(3)]
    assert [client.wait(job).status for job in jobs] == ["succeeded"] * 3
    assert [client.result(job.id)["product"].item() for job in jobs] == [0.0, 1.0, 2.0]
    assert [job.id for job in client.list(limit=2)] == [jobs[2].id, jobs[1].id]
    assert {job.id for job in jobs} <= {job.id for job in client.list()}
    client.delete(jobs[0])
    with pytest.raises(WarpdeskError) as refused:
        client.result(jobs[0])
    assert (refused.value.status, refused.value.code) == (410, "result-gone")


def test_a_release_is_charged_to_a_budget(client: Client) -> None:
    wanted = {"dataset": "of the client", "accountant": "pure", "neighbouring": "add_remove", "epsilon": "0.5"}
    made = client.create_budget("autumn", **wanted)  # type: ignore[arg-type]
    params = {"mechanism": "discrete_laplace", "mode": "records", "epsilon": "0.5", "neighbouring": "add_remove"}
    params |= {"clip": {"norm": "linf", "bound": "1"}, "budget": made.id}  # type: ignore[dict-item]
    result = client.run("dp_noise", values=[0.25, 0.5], params=params)
    left = client.budget(made)
    assert (left.remaining.epsilon, left.entries) == ("0", 1)
    assert result.provenance.charge is not None
    assert result.provenance.charge.head == left.head
    with pytest.raises(WarpdeskError) as refused:
        client.run("dp_noise", values=[0.25, 0.5], params=params)
    assert (refused.value.status, refused.value.code) == (409, "budget-exceeded")


def test_a_wait_that_takes_too_long_times_out_and_the_job_can_be_canceled(client: Client) -> None:
    job = client.submit("monte_carlo", **LONG)
    with pytest.raises(TimeoutError, match=rf"{job.id} is still (queued|running)"):
        client.result(job, timeout=1)
    assert client.cancel(job).status == "canceled"
    with pytest.raises(WarpdeskError) as refused:
        client.result(job)
    assert (refused.value.status, refused.value.code) == (409, "job-canceled")
    # The worker is free again: it did not finish those paths first.
    assert client.run("matmul", a=[[2.0]], b=[[3.0]], timeout=60)["product"].item() == 6.0


def test_a_long_job_tells_how_far_it_is(client: Client) -> None:
    job = client.submit("monte_carlo", **LONG)
    steps = []
    for event in client.events(job):
        steps.append((event.event, event.progress))
        if [name for name, _ in steps].count("progress") == 2:
            client.cancel(job)
    names, parts = (
        [name for name, _ in steps],
        [done for name, done in steps if name == "progress" and done is not None],
    )
    assert names == ["queued", "running", *["progress"] * len(parts), "canceled"]
    assert len(parts) >= 2
    assert parts == sorted(parts)
    assert 0 < parts[0] < parts[1] < 1


def test_a_refusal_is_an_exception_with_status_code_sentence_and_places(client: Client) -> None:
    with pytest.raises(WarpdeskError, match=r"^/params/period: .*\(invalid-request, HTTP 422\)$") as refused:
        client.run("rsi", prices=[1.0, 2.0], period=0)
    assert (refused.value.status, refused.value.code) == (422, "invalid-request")
    assert [place.pointer for place in refused.value.errors] == ["/params/period"]
    with pytest.raises(WarpdeskError, match=r"^2 things are wrong .*\n  /params/period: .*\n  /params/"):
        client.run("rsi", prices=[1.0, 2.0], period=0, convention="none")
    with pytest.raises(WarpdeskError, match="nonsense") as unknown:
        client.run("nonsense")
    assert unknown.value.code == "unknown-operation"
    with pytest.raises(TypeError, match="prices has the dtype object; it must be numbers"):
        client.run("rsi", prices=np.array([1.0, object()]), period=1)


def test_a_service_that_is_not_ours_is_reported_as_such() -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Teapot(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(418)
            self.end_headers()
            self.wfile.write(b"<html>short and stout</html>")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Teapot) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{server.server_port}") as client, pytest.raises(WarpdeskError) as error:
                client.operations()
        finally:
            server.shutdown()
            thread.join()
    assert (error.value.status, error.value.code) == (418, "unexpected-response")
    assert "short and stout" in error.value.detail


def test_the_catalogue_describes_every_operation(client: Client) -> None:
    operations = client.operations()
    assert "rsi" in operations
    assert "period" in operations["rsi"].params["properties"]


def test_the_asynchronous_client_runs_jobs_side_by_side(service: Service) -> None:
    wait_until_ready(service)

    async def several() -> list[float]:
        async with AsyncClient(service.url) as client:
            large = await client.upload(np.ones((100, 100)))
            results = await asyncio.gather(
                client.run("matmul", a=large, b=np.ones((100, 1))),
                client.run("matmul", a=[[2.0]], b=[[3.0]]),
            )
            job = await client.submit("matmul", a=[[5.0]], b=[[5.0]])
            assert (await client.wait(job)).status == "succeeded"
            assert [found.id async for found in client.list(limit=1)] == [job.id]
            results.append(await client.result(job))
            assert (await client.download(large)).sum() == 10_000
            await client.delete(job)
            assert (await client.cancel(results[0].job)).status == "succeeded"
            return [result["product"][0, 0].item() for result in results]

    assert asyncio.run(several()) == [100.0, 6.0, 25.0]


def test_waiting_holds_one_request_open_instead_of_asking_again_and_again(client: Client) -> None:
    requests = []
    client._http.event_hooks["request"] = [requests.append]
    job = client.submit("monte_carlo", **LONG)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        client.wait(job, timeout=2)
    client.cancel(job)
    assert time.monotonic() - began >= 2
    assert len(requests) <= 8, [str(request.url) for request in requests]


@pytest.mark.parametrize("timeout", [0.1, 0.5, 1.5])
def test_the_service_is_not_asked_to_wait_longer_than_the_timeout(client: Client, timeout: float) -> None:
    client.operations()
    requests: list[httpx.Request] = []
    client._http.event_hooks["request"] = [requests.append]
    with pytest.raises(TimeoutError):
        client.run("monte_carlo", timeout=timeout, **LONG)
    client._http.event_hooks["request"] = []
    client.cancel(next(client.list(limit=1)))
    waits = [int(request.headers.get("Prefer", "wait=0").removeprefix("wait=")) for request in requests]
    assert sum(waits) == int(timeout)
    assert len(requests) <= 12, "it is asked again, ever more seldom"


def test_short_waits_find_the_end_of_a_job(service: Service, client: Client) -> None:
    def ends(job: Job) -> bool:
        try:
            return client.wait(job, timeout=0.1).status == "succeeded"
        except TimeoutError:
            return False

    job = client.submit("matmul", a=[[2.0]], b=[[3.0]])
    assert any(ends(job) for _ in range(600))

    async def often() -> float:
        async with AsyncClient(service.url) as connected:
            job = await connected.submit("matmul", a=[[2.0]], b=[[4.0]])
            for _ in range(600):
                with suppress(TimeoutError):
                    return float((await connected.result(job, timeout=0.1))["product"].item())
            raise AssertionError("never done")

    assert asyncio.run(often()) == 8.0


class Table:
    """What a table of any library has: pandas, Polars and PyArrow name this method alike."""

    def to_numpy(self) -> Any:
        return np.ones((4, 2))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Table(), r"prices is a tests Table, whose labels and orientation are not read: .* \.to_numpy\(\)\.T"),
        (["1", "2"], "prices has the dtype <U1; it must be numbers"),
        (np.array(["2020-01-01"], "M8[D]"), r"prices has the dtype datetime64\[D\]; it must be numbers"),
        (np.array([1 + 2j]), "prices has the dtype complex128; it must be numbers"),
        (np.array([None, 1.0]), "prices has the dtype object; it must be numbers"),
        ([1.0, {}], "prices holds '{}' of type dict; it must be numbers, or None for a gap"),
        ([True, False], "prices has the dtype bool; it must be numbers"),
        ([1, True], "prices holds 'True' of type bool; it must be numbers, or None for a gap"),
        ([Table(), Table()], "prices holds a tests Table, whose labels and orientation are not read"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "prices is a masked array"),
        ("prices.csv", r"prices is a string: give numbers .*, a file as what upload\(Path\('prices.csv'\)\) returns"),
        (
            Path("prices.csv"),
            r"prices is a path: give numbers .*, a file as what upload\(Path\('prices.csv'\)\) returns",
        ),
    ],
)
def test_what_is_not_numbers_is_refused_by_name(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        as_array("prices", value, ("float64", "float32"))


@pytest.mark.parametrize(
    ("value", "dtypes", "dtype"),
    [
        (np.arange(4), ("float64", "float32"), "float64"),
        (np.arange(4, dtype=np.uint8), ("float64", "float32"), "float64"),
        (np.array([2**60]), ("float64", "float32"), "float64"),
        (np.array([1.5], np.float16), ("float64", "float32"), "float64"),
        (np.array([1.5], np.float32), ("float64", "float32"), "float32"),
        ([2.0, 3.0], ("uint32", "uint64"), "uint32"),
        ([2**63], ("uint32", "uint64"), "uint64"),
    ],
)
def test_numbers_of_another_dtype_are_taken_exactly(value: Any, dtypes: tuple[str, ...], dtype: str) -> None:
    taken = as_array("prices", value, dtypes)
    assert taken.dtype.name == dtype
    assert [int(2 * each) for each in taken.tolist()] == [int(2 * each) for each in value]


@pytest.mark.parametrize(
    ("value", "dtypes"),
    [
        (np.array([2**60 + 1]), ("float64", "float32")),
        (np.array([2**63 - 1]), ("float64", "float32")),
        (np.array([2**64 - 1], np.uint64), ("float64", "float32")),
        (np.array([-1]), ("uint32", "uint64")),
        ([1.5], ("int64",)),
        (np.array([np.nan]), ("int64",)),
        (np.array([1.0], np.longdouble), ("float64", "float32")),
    ],
)
def test_numbers_that_would_change_are_refused(value: Any, dtypes: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"prices has the dtype .* {dtypes[0]}.* cannot hold exactly"):
        as_array("prices", value, dtypes)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([2**53 + 1, 0.5], f"prices holds {2**53 + 1}, which float64 cannot hold exactly"),
        ([2**63 + 1, -1], f"prices holds {2**63 + 1}, which float64 cannot hold exactly"),
        ([10**400], "prices holds 1000.*, which float64 cannot hold exactly"),
        ([[1.0, 2.0], [3.0]], "prices is a list whose rows differ in length"),
    ],
)
def test_a_list_that_would_change_is_refused(value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        as_array("prices", value, ("float64", "float32"))


@pytest.mark.parametrize("value", [[np.float32(1.5), np.float32(2.5)], [np.array([1.5, 2.5], np.float32)]])
def test_a_list_of_float32_stays_float32(value: Any) -> None:
    assert as_array("prices", value, ("float64", "float32")).dtype == np.float32


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("http://127.0.0.1:1", httpx.ConnectError("refused")),
        RequestRefused(422, "invalid-request", "period must be at least 1"),
        JobTimeout("job_1", "running"),
        RoundTimeout("round_1"),
    ],
)
def test_an_error_can_be_handed_from_one_process_to_another(error: WarpdeskError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)

    assert (type(again), str(again), again.code) == (type(error), str(error), error.code)
    assert vars(again).keys() == vars(error).keys()


def test_a_job_that_ended_while_it_was_canceled_is_told_so() -> None:
    ended = JobDescription.model_construct(id="job_1", status="succeeded")
    late = JobTimeout("job_1", "running")
    late.end(ended)

    for error in (late, pickle.loads(pickle.dumps(late))):  # noqa: S301 (our own)
        assert str(error) == error.detail == "job_1 had not ended by the timeout, and has succeeded since"
    assert late.job is ended


def test_a_key_that_was_read_with_its_line_is_taken_and_another_character_is_not_told() -> None:
    assert repr(Client("http://127.0.0.1:1", "wd_0_secret\n")) == "Client('http://127.0.0.1:1')"
    with pytest.raises(ValueError, match="the API key of 12 characters has some that no key has") as refused:
        Client("http://127.0.0.1:1", "wd_0 secr\net")
    assert "secr" not in str(refused.value)


def test_an_unknown_wish_for_a_timeout_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="on_timeout is one of leave, cancel, got 'cancle'"):
        client.run("monte_carlo", **LONG, timeout=0.5, on_timeout="cancle")  # type: ignore[arg-type]


def test_a_gap_in_a_list_is_none() -> None:
    np.testing.assert_array_equal(
        as_array("prices", [[1, None], [None, 2.5]], ("float64",)), [[1, np.nan], [np.nan, 2.5]]
    )


def test_a_table_is_refused_before_anything_is_sent(client: Client) -> None:
    before = [job.id for job in client.list(limit=1)]
    for send in (lambda: client.run("rsi", prices=Table(), period=2), lambda: client.upload(Table())):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="labels and orientation"):
            send()
    with pytest.raises(TypeError, match="price is no input of this operation"):
        client.run("rsi", price=Table(), period=2)
    assert [job.id for job in client.list(limit=1)] == before


def test_integers_are_prices_too_and_numpy_scalars_parameters(client: Client) -> None:
    ticks = np.array([4434, 4409, 4415, 4361, 4433])
    result = client.run("rsi", prices=ticks, period=np.int64(3))
    np.testing.assert_array_equal(result.rsi, client.run("rsi", prices=ticks.astype(float), period=3)["rsi"])


def test_outputs_of_a_result_have_names(client: Client) -> None:
    result = client.run("bollinger", prices=[1.0, 2.0, 4.0, 3.0], period=2)
    assert result.upper is result["upper"]
    assert set(result) == {"upper", "middle", "lower"} == set(result.keys()) <= set(dir(result))
    with pytest.raises(AttributeError, match="there is no output 'uper'; there are "):
        _ = result.uper


def test_outputs_of_an_expression_are_found_by_their_own_names(client: Client) -> None:
    close = sp500().close[:60]
    wanted = ta.expression(alpha=ta.sma(ta.close, 5), strength=ta.rsi(ta.close, 14))
    result = client.run("expression", params=wanted, close=close)
    assert result["alpha"].tobytes() == client.run("sma", close=close, period=5)["sma"].tobytes()
    assert result.alpha.tobytes() == result["series"][0].tobytes() == ta.outputs(result)["alpha"].tobytes()
    assert ta.outputs(result)["strength"].tobytes() == client.run("rsi", close=close, period=14)["rsi"].tobytes()
    assert set(result) == {"alpha", "strength", "series", "names", "first"} <= set(dir(result))
    assert set(result.outputs) == {"series", "names", "first"}
    copy = pickle.loads(pickle.dumps(result))  # noqa: S301 (ours)
    assert copy["alpha"].tobytes() == result["alpha"].tobytes()
    with pytest.raises(KeyError, match="there is no output 'beta'; there are alpha, strength, series, names, first"):
        _ = result["beta"]
    assert "beta" not in result


def test_a_job_is_asked_by_itself(client: Client) -> None:
    job = client.submit("sum", x=[1.0, 2.0])
    assert job.wait().status == "succeeded"
    assert job.result().job.id == job.id
    assert job.refresh().status == "succeeded"
    assert [event.event for event in job.events()][-1] == "succeeded"
    assert next(iter(client.list(limit=1))).result()["sum"] == job.result()["sum"]


def test_a_job_of_the_asynchronous_client_is_asked_by_itself(service: Service) -> None:
    async def run() -> None:
        async with AsyncClient(service.url) as client:
            job = await client.submit("sum", x=[1.0, 2.0])
            assert (await job.wait()).status == "succeeded"
            assert (await job.result()).job.id == job.id
            assert (await (await job.refresh()).cancel()).status == "succeeded"

    asyncio.run(run())


@pytest.mark.parametrize("progress", [None, lambda event: None])
def test_a_run_that_takes_too_long_has_its_job_and_can_end_it(client: Client, progress: Any) -> None:
    with pytest.raises(JobTimeout) as late:
        client.run("monte_carlo", **LONG, timeout=0.5, on_timeout="cancel", progress=progress)
    job = late.value.job
    assert isinstance(job, Job)
    assert str(late.value) == f"{job.id} had not ended by the timeout, and was canceled"
    assert not hasattr(late.value, "__notes__")
    assert job.wait(60).status == "canceled"
    with pytest.raises(JobFailed) as failed:
        job.result()
    assert (failed.value.code, failed.value.job.status) == ("job-canceled", "canceled")


def test_a_run_that_takes_too_long_goes_on_unless_told_otherwise(client: Client) -> None:
    with pytest.raises(JobTimeout) as late:
        client.run("monte_carlo", **LONG, timeout=0.5)
    assert isinstance(late.value.job, Job)
    assert re.fullmatch(f"{late.value.job.id} is still (queued|running)", str(late.value))
    assert late.value.job.refresh().status in ("queued", "running")
    late.value.job.cancel()


def test_a_service_that_is_not_there_is_named_with_its_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url) as client:
        with pytest.raises(Unreachable, match=f"no Warpdesk service answers at {url}: "):
            client.operations()
        with pytest.raises(Unreachable, match=f"no Warpdesk service answers at {url}: "):
            next(client.events("job_1"))
        assert repr(client) == f"Client('{url}')"
    assert issubclass(Unreachable, httpx.TransportError)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="is not the address of a service, such as "):
        Client(url)


def test_each_kind_of_refusal_has_its_exception(client: Client) -> None:
    with pytest.raises(NotFound):
        client.job("job_1")
    with pytest.raises(RequestRefused) as refused:
        client.run("rsi", prices=[1.0], period=14)
    assert type(refused.value) is RequestRefused
    kinds = {401: Unauthorized, 403: Unauthorized, 410: NotFound, 429: Busy, 503: Busy, 507: Busy, 500: RequestRefused}
    for status, kind in kinds.items():
        with pytest.raises(RequestRefused) as refused:
            errors.checked(httpx.Response(status, text="the page of a proxy"))
        assert type(refused.value) is kind


def test_times_of_frames_keep_their_nanoseconds() -> None:
    moment, at = "2026-11-27T21:00:00.123456789", np.datetime64("2026-11-27T21:00:00.123456789").astype(int)
    stamp = pd.Timestamp(moment, tz="UTC").tz_convert("America/New_York")
    assert as_time(stamp) == at
    naive = pd.DatetimeIndex([moment])
    for times in (stamp, [stamp], pd.DatetimeIndex([stamp]), naive, naive.to_series(), pl.Series(naive.to_numpy())):
        assert as_times(times) == [at]
    assert as_times(pd.DatetimeIndex([stamp]).as_unit("s")) == [at // 10**9 * 10**9]
    for text in (
        f"{moment}Z",
        f"{moment}z",
        "2026-11-28 02:30:00.123456789+05:30",
        "2026-11-27T16:00:00,123456789-0500",
    ):
        assert nanoseconds_of(text) == at
    for odd in (pd.NaT, [pd.NaT], pd.DatetimeIndex([None]), pd.Timestamp(moment), pd.DatetimeIndex(["3000-01-01"])):
        with pytest.raises(ValueError, match=r"a time is (NaT|outside)|has no time zone"):
            as_times(odd)
    for text in ("2026-11-27", moment, "9999-11-27T21:00Z", "27 November 2026"):
        with pytest.raises(ValueError, match=r"is not a time with a zone|is outside"):
            nanoseconds_of(text)
