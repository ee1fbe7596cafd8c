"""The Python client against a real service: NumPy in, NumPy out, errors as exceptions."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from examples.prices import sp500
from tests.conftest import Service, wait_until_ready
from warpdesk import AsyncClient, Client, WarpdeskError
from warpdesk.client import Job
from warpdesk.encoding import INLINE

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
        async with AsyncClient(client._exchange._url) as connected:
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
    asked = {"mechanism": "discrete_laplace", "mode": "records", "epsilon": "0.5", "neighbouring": "add_remove"}
    asked |= {"clip": {"norm": "linf", "bound": "1"}, "budget": made.id}  # type: ignore[dict-item]
    result = client.run("dp_noise", values=[0.25, 0.5], params=asked)
    left = client.budget(made)
    assert (left.remaining.epsilon, left.entries) == ("0", 1)
    assert result.provenance.charge is not None
    assert result.provenance.charge.head == left.head
    with pytest.raises(WarpdeskError) as refused:
        client.run("dp_noise", values=[0.25, 0.5], params=asked)
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
    told = []
    for event in client.events(job):
        told.append((event.event, event.progress))
        if [name for name, _ in told].count("progress") == 2:
            client.cancel(job)
    names, parts = [name for name, _ in told], [done for name, done in told if name == "progress" and done is not None]
    assert names == ["queued", "running", *["progress"] * len(parts), "canceled"]
    assert len(parts) >= 2
    assert parts == sorted(parts)
    assert 0 < parts[0] < parts[1] < 1


def test_a_refusal_is_an_exception_with_status_code_sentence_and_places(client: Client) -> None:
    with pytest.raises(WarpdeskError, match="HTTP 422") as refused:
        client.run("rsi", prices=[1.0, 2.0], period=0)
    assert (refused.value.status, refused.value.code) == (422, "invalid-request")
    assert [place.pointer for place in refused.value.errors] == ["/params/period"]
    with pytest.raises(WarpdeskError, match="nonsense") as unknown:
        client.run("nonsense")
    assert unknown.value.code == "unknown-operation"
    with pytest.raises(TypeError, match="Python objects"):
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
    asked = [int(request.headers.get("Prefer", "wait=0").removeprefix("wait=")) for request in requests]
    assert sum(asked) == int(timeout)
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
