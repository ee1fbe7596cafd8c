"""Durability: a response is sent once a power cut would leave what it acknowledges."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.conftest import SCALE, Live, live
from tests.power_cut import Disk, small_disk
from warpdesk_server.workers.store.spool import SpoolStore


@pytest.fixture
def power(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path) as made:
        yield made


@pytest.fixture
def api(power: Disk, redis_url: str) -> Iterator[Live]:
    with live(power.path / "home", redis_url) as made:
        yield made


def after(power: Disk) -> SpoolStore:
    return SpoolStore(power.cut() / "home" / "store")


@pytest.mark.parametrize(
    ("content", "headers"),
    [(npy(np.arange(3.0)), NPY), (b"0\n1\n2\n", {"Content-Type": "text/csv"})],
    ids=["npy", "csv"],
)
def test_an_uploaded_array_is_on_the_disk_before_its_id_is_answered(
    api: Live, power: Disk, content: bytes, headers: dict[str, str]
) -> None:
    answer = api.http.put("/v1/arrays", content=content, headers=headers)
    found = after(power)
    array_id = answer.json()["id"]
    assert found.find("local", array_id) is not None
    assert np.load(found.path("local", array_id)).tolist() == [0.0, 1.0, 2.0]


def test_inline_inputs_are_on_the_disk_before_the_job_is_acknowledged(api: Live, power: Disk) -> None:
    job_id = api.submit(**SCALE)
    found = after(power)
    record = api.queue.get(job_id)
    assert record is not None
    array_id = record.request.inputs["values"]
    assert found.find("local", array_id) is not None
    np.testing.assert_array_equal(np.load(found.path("local", array_id)), [1.0, np.nan, 3.0])


def test_the_event_loop_never_waits_for_the_disk(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop: list[bool] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        in_loop.append(asyncio._get_running_loop() is not None)
        real(descriptor)

    with serve_api() as api:
        monkeypatch.setattr(os, "fsync", fsync)
        array = api.http.put("/v1/arrays", content=npy(np.arange(3.0)), headers=NPY).json()
        api.http.put("/v1/arrays", content=b"1\n", headers={"Content-Type": "text/csv"})
        api.submit(**SCALE)
        assert api.http.delete(f"/v1/arrays/{array['id']}").status_code == 204
    assert in_loop
    assert not any(in_loop)
