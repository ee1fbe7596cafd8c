"""Datasets in a whole service: clients fill them, jobs read them, and a killed API loses and doubles nothing."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np
import pytest

from tests.conftest import Service, processes_of, wait_until_ready
from tests.waiting import wait_until
from warpdesk import AsyncClient, Client, Dataset, RequestRefused

CLOSES = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, np.nan], [8.0, 40.0]])
DAYS = np.arange("2026-11-23", "2026-11-27", dtype="datetime64[D]")
WRITERS, ROWS = 10, 4


@pytest.fixture
def us(client: Client) -> Iterator[str]:
    made = client.create_dataset("us", columns={"close": "float64", "volume": "float32"}, assets=["A", "B"])
    assert (made.version, made.assets) == (0, ["A", "B"])
    yield "us"
    client.delete_dataset("us")


def test_an_answer_of_a_dataset_is_repeated_by_the_version_that_its_job_tells(client: Client, us: str) -> None:
    rows = {"close": CLOSES, "volume": CLOSES * 1.1}
    assert client.append_rows(us, DAYS, rows).added == 4
    assert client.append_rows(us, DAYS, rows).unchanged == 4
    first = client.sma(Dataset(us, column="close"), period=2)
    assert np.array_equal(first.sma[0], [np.nan, 1.5, 3.0, 6.0], equal_nan=True)
    with pytest.raises(RequestRefused, match=r"close of A at 2026-11-26T00:00:00Z is 8\.0 in us and would become 9\.0"):
        client.append_rows(us, DAYS[-1], {"close": [9.0, 40.0], "volume": [8.8, 44.0]})
    corrected = client.append_rows(us, DAYS[-1], {"close": [9.0, 40.0], "volume": [8.8, 44.0]}, correct=True)
    assert (corrected.corrected, corrected.version) == (1, 2)
    assert client.sma(Dataset(us, column="close"), period=2).sma[0, -1] == 6.5
    source = client.job(first.job.id).datasets["close"]
    assert source.as_of == 1
    again = client.run("sma", close=source.model_dump(), period=2)
    assert again["sma"].tobytes() == first.sma.tobytes()
    one = Dataset(us, "close", start="2026-11-24T00:00:00Z", stop=datetime(2026, 11, 26, tzinfo=UTC), assets="A")
    assert client.sma(one, period=2).sma.tolist()[1:] == [3.0]


def test_rows_come_back_as_they_were_sent_whether_they_are_few_or_many(client: Client, us: str) -> None:
    many, at = np.random.default_rng(5).random((5000, 2)), np.arange(5000).astype("datetime64[s]")
    client.append_rows(us, at, {"close": many, "volume": many}, assets=["B", "A"])
    client.append_rows(us, "1970-01-02T00:00:00Z", {"close": [3.0], "volume": [np.inf]}, assets=["C"])
    found = client.read_rows(us, "close", as_of=1)
    assert (found.assets, found.version, found.numbers.tobytes()) == (["A", "B"], 1, many[:, ::-1].tobytes())
    assert np.array_equal(found.times, at)
    last = client.read_rows(us, "volume", start=np.datetime64("1970-01-02"), assets=["C", "A"])
    assert last.numbers.tolist()[0][0] == np.inf
    assert np.isnan(last.numbers[0, 1])
    volume = client.read_rows(us, "volume", stop=at[2])
    assert np.array_equal(volume.numbers[:, :2], many[:2, ::-1].astype("float32"))
    assert [each.name for each in client.datasets()] == [us]


def test_the_asynchronous_client_has_the_same(service: Service) -> None:
    async def use() -> None:
        async with AsyncClient(service.url) as client:
            await client.create_dataset("eu", columns={"close": "float64"}, assets=["A", "B"])
            await client.append_rows("eu", DAYS, {"close": CLOSES})
            found = await client.read_rows("eu", "close", assets=["B"])
            result = await client.sma(Dataset("eu", "close", assets=["A"]), period=2)
            described, listed = await client.dataset("eu"), await client.datasets()
            await client.delete_dataset("eu")
        assert np.array_equal(found.numbers, CLOSES[:, 1:], equal_nan=True)
        assert result.sma.shape == (1, 4)
        assert (described.rows, [each.name for each in listed]) == (4, ["eu"])

    wait_until_ready(service)
    asyncio.run(use())


@pytest.mark.parametrize(
    ("time", "sentence"),
    [
        (datetime(2026, 11, 27), "has no time zone"),
        (np.datetime64("NaT"), "NaT"),
        (np.datetime64("2300-01-01"), "outside what nanoseconds"),
        ("2026-11-27", "is not a time with a zone"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(client: Client, us: str, time: object, sentence: str) -> None:
    with pytest.raises((ValueError, RequestRefused), match=sentence):
        client.append_rows(us, time, {"close": [1.0, 2.0], "volume": [1.0, 2.0]})  # type: ignore[arg-type]


def test_rows_of_ten_clients_are_there_once_although_the_api_is_killed(service: Service, client: Client) -> None:
    client.create_dataset("busy", columns={"close": "float64"})
    acknowledged, lock = set[int](), threading.Lock()

    def write(writer: int) -> None:
        with Client(service.url, timeout=60) as own:
            for row in range(ROWS):
                time = row * 100 + writer
                while True:
                    try:
                        own.append_rows("busy", time, {"close": [float(time)]}, assets=[f"A{writer}"], correct=True)
                        break
                    except Exception:  # noqa: BLE001 - the API is away: the same row is sent again
                        wait_until_ready(service, path="/livez")
                with lock:
                    acknowledged.add(time)

    with ThreadPoolExecutor(WRITERS) as threads:
        writers = [threads.submit(write, writer) for writer in range(WRITERS)]
        wait_until(lambda: len(acknowledged) >= WRITERS)
        with lock:
            before = set(acknowledged)
        [api] = [pid for pid, line in processes_of(service.home).items() if "warpdesk_server.service.api" in line]
        os.kill(api, signal.SIGKILL)
        wait_until(lambda: api not in processes_of(service.home))
        wait_until_ready(service, path="/livez")
        assert before <= set(client.read_rows("busy", "close").times.astype(np.int64).tolist())
        for writer in writers:
            writer.result()

    found = client.read_rows("busy", "close")
    times = found.times.astype(np.int64)
    assert times.tolist() == sorted(row * 100 + writer for row in range(ROWS) for writer in range(WRITERS))
    for asset, numbers in zip(found.assets, found.numbers.T, strict=True):
        assert np.array_equal(numbers, np.where(times % 100 == int(asset[1:]), times, np.nan), equal_nan=True)
    assert found.version == WRITERS * ROWS
    client.delete_dataset("busy")
