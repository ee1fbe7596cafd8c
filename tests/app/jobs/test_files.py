"""Files that a task returns: in the result, over HTTP, and through the clients."""

import asyncio
import hashlib
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.computations import WITH_TASKS
from tests.app.conftest import Live, live
from tests.claims import finish
from tests.waiting import wait_until
from tests.workers.stepping import PACK
from tests.workers.stepping.task import model
from warpdesk import AsyncClient, AsyncResultFile, Client, ResultFile, WarpdeskError
from warpdesk.cli.values import listed
from warpdesk.exchange import TRIES
from warpdesk_server.workers.child import tasks
from warpdesk_server.workers.child.device import without_gpu
from warpdesk_server.workers.pipe import Attempt
from warpdesk_server.workers.queue.records import Claim

SIZE = 700_001  # more than the API reads at once, and than a connection brings
SHA256 = hashlib.sha256(model(SIZE)).hexdigest()


@pytest.fixture
def api(tmp_path: Path, redis_url: str) -> Iterator[Live]:
    with live(tmp_path, redis_url, WITH_TASKS) as running:
        yield running


def pack(api: Live, **body: Any) -> str:
    """The id of a job that a worker has done, of this process."""
    job_id = api.submit(operation="pack", params={"size": SIZE}, **body)
    batch = api.queue.claim(Claim("a worker of tasks", takes="tasks"))
    assert batch is not None
    (job,) = batch.jobs
    parent, end = Pipe()
    with parent, end:
        attempt = Attempt(request=job.request, attempt=job.attempt)
        outcome = tasks.run(attempt, {"pack": PACK}, api.store, without_gpu("none here"), end, 0.0)
    assert finish(api.queue, job, outcome) == "done"
    return job_id


def test_a_result_tells_of_its_files_and_has_none_of_their_bytes(api: Live) -> None:
    outputs = api.http.get(f"/v1/jobs/{pack(api)}/result").json()["outputs"]
    described = {"file": "model.bin", "media_type": "application/octet-stream", "bytes": SIZE, "sha256": SHA256}
    empty = {"file": "notes.html", "media_type": "text/html", "bytes": 0, "sha256": hashlib.sha256().hexdigest()}
    assert outputs == {"model": described, "size": SIZE, "notes": empty}
    assert [each["kind"] for each in api.http.get("/v1/operations/pack").json()["outputs"]] == ["file", "value", "file"]


def test_a_file_is_downloaded_whole_or_in_part_and_never_shown(api: Live) -> None:
    place = f"/v1/jobs/{pack(api)}/result/model"
    whole = api.http.get(place)
    assert (whole.status_code, whole.content) == (200, model(SIZE))
    assert whole.headers["Content-Type"] == "application/octet-stream"
    assert whole.headers["Content-Disposition"] == 'attachment; filename="model.bin"'
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    assert whole.headers["Accept-Ranges"] == "bytes"
    part = api.http.get(place, headers={"Range": f"bytes={SIZE - 300_000}-", "If-Range": whole.headers["ETag"]})
    assert (part.status_code, part.content) == (206, model(SIZE)[-300_000:])
    assert part.headers["Content-Disposition"] == 'attachment; filename="model.bin"'
    assert api.http.get(place, headers={"If-None-Match": whole.headers["ETag"]}).status_code == 304
    assert api.http.get(place, headers={"Range": f"bytes={SIZE}-"}).status_code == 416
    refused = api.http.get(place, headers={"Accept": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not-acceptable")


def test_an_empty_file_is_downloaded_and_html_is_an_attachment(api: Live) -> None:
    answer = api.http.get(f"/v1/jobs/{pack(api)}/result/notes")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Type"].startswith("text/html")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="notes.html"'
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("output", ["model.bin", "model-model.bin", "result.json", "..%2Fmodel", "%2e%2e"])
def test_only_outputs_are_downloaded(api: Live, output: str) -> None:
    assert api.http.get(f"/v1/jobs/{pack(api)}/result/{output}").status_code == 404


def test_files_are_erased_with_their_job_and_expire_with_it(api: Live) -> None:
    erased, late = pack(api), pack(api, result_ttl_s=1.0)
    assert api.http.delete(f"/v1/jobs/{erased}").status_code == 204
    assert api.http.get(f"/v1/jobs/{erased}/result/model").json()["code"] == "result-gone"
    assert not api.store.result(f"{erased}.1").exists()
    wait_until(lambda: api.http.get(f"/v1/jobs/{late}/result/model").status_code == 410)


def test_files_count_as_stored(tmp_path: Path, redis_url: str) -> None:
    """While the task runs with what it declares, and then with what they have."""
    with live(tmp_path, redis_url, WITH_TASKS, max_stored_bytes_per_key=2 << 20) as small:
        pack(small)
        wait_until(lambda: small.http.post("/v1/jobs", json={"operation": "pack"}).status_code == 429)
        with Client(small.url) as client:
            client.delete(next(client.list()))
        wait_until(lambda: small.http.post("/v1/jobs", json={"operation": "pack"}).status_code == 202)


def test_a_client_fetches_a_file_once_it_is_asked_for(api: Live, tmp_path: Path) -> None:
    with Client(api.url) as client:
        result = client.result(pack(api))
        assert isinstance(result.model, ResultFile)
        assert (result["model"].name, result["model"].bytes, result["model"].sha256) == ("model.bin", SIZE, SHA256)
        assert result.model.read() == model(SIZE)
        assert result.notes.read() == b""
        folder = tmp_path / "downloads"
        folder.mkdir()
        assert result.model.save(folder) == folder / "model.bin"
        assert result.notes.save(str(folder / "other")) == folder / "other"
        assert result.model.save(f"{folder.parent}/models/new/") == folder.parent / "models" / "new" / "model.bin"
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"model.bin": model(SIZE), "other": b""}
        assert listed(result.model)["bytes"] == SIZE


class Cutting(httpx.HTTPTransport):
    """Connections of a client that break once they have brought 100,000 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[str | None] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if request.url.path.endswith("/model"):
            self.ranges.append(request.headers.get("Range"))
            response.stream = _Cut(response.stream)
        return response


class _Cut(httpx.SyncByteStream):
    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def __iter__(self) -> Iterator[bytes]:
        count = 0
        for piece in self._whole:
            yield piece
            count += len(piece)
            if count >= 100_000:
                raise httpx.ReadError("it is cut")

    def close(self) -> None:
        self._whole.close()


def test_a_download_goes_on_where_its_connection_broke_as_often_as_it_takes(api: Live, tmp_path: Path) -> None:
    with Client(api.url) as client:
        found = client.result(pack(api)).model
        client.close()
        cutting = Cutting()
        client._http = httpx.Client(transport=cutting)
        assert found.save(tmp_path).read_bytes() == model(SIZE)
    first, *others = cutting.ranges
    assert first is None
    assert len(others) >= TRIES, "each brought something"
    assert all(place is not None and place.startswith("bytes=") for place in others)


def test_a_client_for_asyncio_does_too(api: Live, tmp_path: Path) -> None:
    async def fetch() -> None:
        async with AsyncClient(api.url) as client:
            result = await client.result(job_id)
            assert isinstance(result.model, AsyncResultFile)
            assert await result.model.read() == model(SIZE)
            assert (await result.model.save(tmp_path / "saved")).read_bytes() == model(SIZE)

    job_id = pack(api)
    asyncio.run(fetch())


def test_a_file_that_came_damaged_or_not_at_all_leaves_what_was_there(api: Live, tmp_path: Path) -> None:
    job_id = pack(api)
    place = tmp_path / "model.bin"
    place.write_bytes(b"before")
    stored = api.store.result(f"{job_id}.1") / "model-model.bin"
    with Client(api.url) as client:
        found = client.result(job_id).model
        content = bytearray(stored.read_bytes())
        content[5] ^= 1
        stored.write_bytes(content)
        with pytest.raises(WarpdeskError, match=f"model.bin came with {SIZE} bytes that are not the {SIZE} of the"):
            found.save(place)
        client.delete(job_id)
        with pytest.raises(WarpdeskError, match="result-gone"):
            found.save(place)
    assert place.read_bytes() == b"before"
    assert list(tmp_path.glob(".*.part")) == []
