"""Storage limits: quotas of keys, the part of the disk that is kept free, and how deletions and sweeps free room."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import pytest

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.computations import fail, work
from tests.app.conftest import SCALE, Live
from tests.claims import request
from tests.waiting import wait_until
from warpdesk.models import DType, State
from warpdesk_server.app import background
from warpdesk_server.app.access.keys import create_key
from warpdesk_server.app.arrays.npy_upload import NpyUpload
from warpdesk_server.app.arrays.storage import ended
from warpdesk_server.service.redis_server import RedisServer
from warpdesk_server.workers.queue.records import InputsGone, JobRecord, NewJob
from warpdesk_server.workers.store.protocol import ArrayWriter
from warpdesk_server.workers.store.spool import SpoolStore
from warpdesk_server.workers.store.usage import Quota

MIB = 1 << 20
NOW = time.time()

Keyed = dict[str, str]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Keyed, Keyed]:
    """Headers of two keys of the service that `serve_api` starts."""
    tokens = (create_key(tmp_path / "home", name, ["submit", "read", "cancel"]) for name in ("one", "two"))
    one, two = ({"Authorization": f"Bearer {token}"} for token in tokens)
    return one, two


def upload(api: Live, key: Keyed, size: int, fill: float = 1.0) -> httpx.Response:
    return api.http.put("/v1/arrays", content=npy(np.full(size // 8, fill)), headers={**NPY, **key})


def draw(api: Live, key: Keyed, count: int) -> httpx.Response:
    """The response to a job whose request is some 60 bytes and whose result is 8 bytes for each count."""
    return api.http.post("/v1/jobs", json={"operation": "draw", "params": {"count": count}}, headers=key)


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def stored(api: Live, key: Keyed) -> int:
    whole: int = api.http.get("/v1/arrays", headers=key).json()["stored_bytes"]
    return whole


def test_a_key_stores_as_much_as_its_quota_and_another_key_is_not_hurt(
    serve_api: Callable[..., Any], keys: tuple[Keyed, Keyed]
) -> None:
    greedy, other = keys
    with serve_api(max_stored_bytes_per_key=3 * MIB, max_stored_bytes=10 * MIB) as api:
        first = upload(api, greedy, MIB)
        assert [upload(api, greedy, MIB, 2.0).status_code, first.status_code] == [201, 201]

        refused = upload(api, greedy, MIB, 3.0)

        took = stored(api, greedy)
        assert status_and_code(refused) == (429, "storage-quota")
        assert f"The key stores {took} bytes and would store " in refused.json()["detail"]
        assert f"its quota is {3 * MIB}" in refused.json()["detail"]
        assert 2 * MIB < took < 2 * MIB + 50_000
        assert not list((api.settings.store_directory / "uploads").iterdir())
        assert upload(api, greedy, MIB, 2.0).status_code == 429  # refused before its body is read
        assert upload(api, other, MIB).status_code == 201
        assert api.http.delete(first.headers["Location"], headers=greedy).status_code == 204
        assert upload(api, greedy, MIB, 3.0).status_code == 201  # the deletion freed its room at once


def test_what_queued_jobs_will_write_counts_before_any_of_it_is_written(
    serve_api: Callable[..., Any], keys: tuple[Keyed, Keyed]
) -> None:
    greedy, other = keys
    with serve_api(max_stored_bytes_per_key=10 * MIB, max_stored_bytes=15 * MIB) as api:
        jobs = [draw(api, greedy, MIB // 2) for _ in range(3)]  # each result has 4 MiB

        assert [status_and_code(job)[0] for job in jobs] == [202, 202, 429]
        assert status_and_code(jobs[2]) == (429, "storage-quota")
        assert api.queue.length() == 2
        assert status_and_code(draw(api, other, 7 * MIB // 8)) == (503, "storage-full")  # the limit of all keys, 15 MiB
        assert draw(api, other, 1000).status_code == 202

        fail(api.queue, jobs[0].json()["id"])  # a failed job has no result
        wait_until(lambda: draw(api, greedy, MIB // 2).status_code == 202)


def test_a_result_counts_with_what_it_took_and_no_more_once_it_is_erased(
    serve_api: Callable[..., Any], keys: tuple[Keyed, Keyed]
) -> None:
    key, _ = keys
    with serve_api(max_stored_bytes_per_key=60 * MIB) as api:
        array = upload(api, key, MIB).json()["id"]
        before = stored(api, key)
        body = {"operation": "scale", "params": {"factor": 2.0, "window": 20}, "inputs": {"values": {"array": array}}}
        job = api.http.post("/v1/jobs", json=body, headers=key).json()["id"]
        assert stored(api, key) - before > 38 * MIB  # the bytes of the job's declared cost

        work(api.queue, api.store, job)

        wait_until(lambda: MIB < stored(api, key) - before < MIB + 50_000)
        assert api.http.delete(f"/v1/jobs/{job}", headers=key).status_code == 204
        wait_until(lambda: stored(api, key) == 0)  # its input was erased with it


def test_what_is_stored_is_known_after_a_restart_and_to_every_process(
    serve_api: Callable[..., Any], keys: tuple[Keyed, Keyed]
) -> None:
    key, _ = keys
    bounds = {"max_stored_bytes_per_key": 3 * MIB, "sweep_every": 3600.0}
    with serve_api(**bounds) as api, serve_api(**bounds) as beside:
        assert upload(api, key, 2 * MIB).status_code == 201
        assert draw(api, key, 10_000).status_code == 202
        took = stored(api, key)
        wait_until(lambda: stored(beside, key) == took)
        assert status_and_code(upload(beside, key, MIB)) == (429, "storage-quota")
    with serve_api(**bounds) as api:
        assert stored(api, key) == took
        assert status_and_code(upload(api, key, MIB)) == (429, "storage-quota")


def test_arrays_are_listed_newest_first_a_page_at_a_time_for_their_key_alone(
    serve_api: Callable[..., Any], keys: tuple[Keyed, Keyed]
) -> None:
    key, other = keys
    with serve_api(max_stored_bytes_per_key=MIB) as api:
        ids = [upload(api, key, 800, fill).json()["id"] for fill in range(5)]
        upload(api, other, 800)

        pages, path = [], "/v1/arrays?limit=2"
        while path:
            answer = api.http.get(path, headers=key).json()
            pages.append([array["id"] for array in answer["arrays"]])
            path = answer["next"]

        assert [len(page) for page in pages] == [2, 2, 1]
        assert {array for page in pages for array in page} == {*ids}
        assert (answer["stored_bytes"], answer["max_stored_bytes"]) == (5 * 2 * 4096, MIB)
        assert status_and_code(api.http.get("/v1/arrays?cursor=7", headers=key)) == (422, "invalid-request")


def test_below_what_is_kept_free_nothing_is_stored_or_claimed_and_readiness_says_so(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    with serve_api(kept_free_bytes=1 << 60) as api:
        refused = upload(api, {}, 8000), draw(api, {}, 10)
        ready = api.http.get("/readyz")

        assert [status_and_code(answer) for answer in refused] == [(503, "storage-full")] * 2
        assert all(f"would not leave the {1 << 60} bytes of the disk" in answer.json()["detail"] for answer in refused)
        assert int(refused[0].headers["Retry-After"]) >= 1
        assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
        kept = f"The disk of the store has less free than is kept for Redis and the ledger, {1 << 60} bytes"
        assert ready.json()["reasons"][0] == kept
        assert ready.json()["store_free_bytes"].bit_count() == 1  # rounded, so that it does not show what others store
        metrics = api.http.get("/metrics").text
        assert f"warpdesk_store_kept_free_bytes {float(1 << 60)}" in metrics
        assert "warpdesk_store_free_bytes" in metrics
    store = SpoolStore(tmp_path / "store", kept_free=1 << 60)
    assert "kept for Redis and the ledger" in (store.trouble() or "")  # the reason why its worker claims nothing
    with pytest.raises(OSError, match=r"would not leave"):
        store.require_room(1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_upload_in_either_order_leaves_what_is_kept_free(tmp_path: Path, order: Literal["C", "F"]) -> None:
    content = npy(np.asarray(np.ones((1000, 100)), order=order))
    store = SpoolStore(tmp_path / "store", kept_free=0, quota=Quota(4 * MIB, 4 * MIB))

    def open_writer(dtype: DType, shape: tuple[int, ...]) -> ArrayWriter:
        writer = store.writer("key", dtype, shape, 60.0)
        writer._kept_free = 1 << 60  # others filled the disk after the upload began
        return writer

    upload = NpyUpload(open_writer, MIB, len(content))
    upload.take(content)
    with pytest.raises(OSError, match=r"would not leave"):
        upload.flush()
    upload.discard()
    assert store.stored("key")[0] == 0
    assert list((tmp_path / "store" / "uploads").iterdir()) == []


def test_an_array_that_has_to_be_turned_counts_twice_until_it_is_stored(
    serve_api: Callable[..., Any], keys: tuple[Keyed, Keyed]
) -> None:
    greedy, _ = keys
    turned = npy(np.asfortranarray(np.ones((MIB // 16, 2))))
    with serve_api(max_stored_bytes_per_key=int(1.9 * MIB)) as api:
        refused = api.http.put("/v1/arrays", content=turned, headers={**NPY, **greedy})
        assert status_and_code(refused) == (429, "storage-quota")
        assert (stored(api, greedy), upload(api, greedy, MIB).status_code) == (0, 201)


def test_without_redis_what_outlived_its_time_is_swept_but_no_array_that_a_live_job_reads(
    serve_api: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.workers.store.maintenance._CHECKED_SECONDS", 0.0)
    server = RedisServer(tmp_path / "r")
    server.start()
    with serve_api(server.url, array_ttl=5.0, result_ttl=2.0, sweep_every=0.5, redis_patience=1.0) as api:
        done = draw(api, {}, 1000).json()["id"]
        work(api.queue, api.store, done)
        read, unread = (upload(api, {}, 8000, fill).json()["id"] for fill in (1.0, 2.0))
        body = {"operation": "scale", "params": {"factor": 2.0}, "inputs": {"values": {"array": read}}}
        assert api.http.post("/v1/jobs", json=body).status_code == 202
        server.stop()
        try:
            wait_until(lambda: api.store.info_of("local", unread) is None)
            wait_until(lambda: not list((api.settings.store_directory / "results").iterdir()))
            assert api.store.info_of("local", read) is not None
        finally:
            server.start()
        try:
            wait_until(lambda: api.http.get("/v1/jobs").status_code == 200)
            assert api.store.info_of("local", read) is not None
        finally:
            server.stop()


def test_an_array_is_deleted_without_redis_where_no_job_can_be_reading_it(
    serve_api: Callable[..., Any], tmp_path: Path
) -> None:
    server = RedisServer(tmp_path / "r")
    server.start()
    with serve_api(server.url, redis_patience=1.0) as api:
        read, unread = (upload(api, {}, 8000, fill).json()["id"] for fill in (1.0, 2.0))
        body = {"operation": "scale", "params": {"factor": 2.0}, "inputs": {"values": {"array": read}}}
        assert api.http.post("/v1/jobs", json=body).status_code == 202
        server.stop()

        kept, deleted = (api.http.delete(f"/v1/arrays/{array}") for array in (read, unread))

        assert status_and_code(kept) == (503, "queue-unavailable")
        assert f"a job that may not have ended reads {read}" in kept.json()["detail"]
        assert deleted.status_code == 204
        assert [api.http.get(f"/v1/arrays/{array}").status_code for array in (read, unread)] == [200, 404]


def test_a_store_of_an_earlier_release_is_counted(tmp_path: Path) -> None:
    before = SpoolStore(tmp_path / "store")  # without a quota, as an earlier release: it counts nothing
    with before.writer("key_a", "uint8", (10_000,), 60.0) as writer:
        writer.take(bytes(10_000))
        array = writer.commit(has_nan=False, has_inf=False).id
    store = SpoolStore(tmp_path / "store", quota=Quota(MIB, MIB))
    assert store.stored("key_a")[0] == 0

    store.recount()

    assert store.stored("key_a")[0] == 3 * 4096 + 4096
    assert [found.id for _, found in store.arrays("key_a", 10)] == [array]
    assert not store.unread("key_a", array)  # a job that was queued earlier may read it
    store.close()


def test_a_key_without_room_to_store_an_input_again_is_told_so(
    serve_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_api() as api:
        store, jobs = api.app.state.services.store, api.app.state.services.queue.jobs

        def gone(new: Sequence[NewJob], *_: object) -> None:  # as if the input was deleted after it was stored
            full = store.stored("local")[0]
            monkeypatch.setattr(store._usage, "quota", Quota(full, full))
            raise InputsGone(*new[0].request.inputs.values())

        monkeypatch.setattr(jobs, "enqueue_all", gone)
        assert status_and_code(api.http.post("/v1/jobs", json=SCALE)) == (429, "storage-quota")
        assert api.app.state.services.queue.usable


def test_a_result_by_a_name_that_is_none_stops_no_counting(tmp_path: Path) -> None:
    store = SpoolStore(tmp_path, quota=Quota(10**9, 10**9))
    job = request(size=1 << 30)
    store.promise(job, 1 << 20)
    ended(store, JobRecord(job, State.SUCCEEDED, 1, 0.0, result="../../etc"))
    store.sync()
    assert store.unended() == []
    store.close()


def test_what_runs_beside_requests_begins_again_where_it_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "AGAIN", 0.0)
    begun = []

    async def work() -> None:
        begun.append(1)
        if len(begun) < 3:
            raise ValueError("an odd record")

    asyncio.run(background.keep_going("storage", work))
    assert len(begun) == 3
    assert caplog.text.count("'storage' failed") == 2
