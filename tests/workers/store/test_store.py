"""Arrays and results in a spool directory: keyed ids, no foreign reads, nothing half-written."""

import errno
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from warpdesk.models import DType
from warpdesk_server.kernels.array import ArrayInfo
from warpdesk_server.workers.store.arrays import SpoolWriter
from warpdesk_server.workers.store.protocol import StoredArray, result_name
from warpdesk_server.workers.store.secret import UnusableStore
from warpdesk_server.workers.store.spool import SpoolStore

A, B = "key_a", "../key_b\n"
MISSING = "blake3:" + "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> SpoolStore:
    return SpoolStore(tmp_path / "spool")


def put(
    store: SpoolStore,
    array: np.ndarray,
    owner: str = A,
    ttl: float = 60.0,
    pieces: int = 1,
    unique: bool = False,
) -> StoredArray:
    dtype: DType = array.dtype.name  # type: ignore[assignment]
    data = memoryview(array.tobytes())
    step = max(1, -(-len(data) // pieces))
    with store.writer(owner, dtype, array.shape, ttl, unique=unique) as writer:
        for start in range(0, len(data), step):
            writer.take(data[start : start + step])
        return writer.commit(has_nan=False, has_inf=False)


def files(store: SpoolStore, tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "spool").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "array",
    [np.arange(10, dtype=dtype) for dtype in ("float64", "float32", "int64", "int32", "uint64", "uint32", "uint8")]
    + [np.zeros((2, 3, 5)), np.zeros((0, 4)), np.array(3.5), np.arange(100_000.0)],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_numpy_reads_and_maps_what_was_written(store: SpoolStore, array: np.ndarray) -> None:
    stored = put(store, array, pieces=3)
    path = store.path(A, stored.id)
    read = np.load(path, allow_pickle=False)
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)
    assert stored.info == ArrayInfo(array.dtype.name, array.shape)
    if array.size:
        assert np.load(path, mmap_mode="r").offset % 64 == 0


def test_the_same_upload_has_the_same_id_however_it_was_cut(store: SpoolStore) -> None:
    array = np.arange(300_000.0)
    ids = {put(store, array, pieces=pieces).id for pieces in (1, 2, 7)}
    assert ids == {store.digest(A, "float64", array.shape, array.tobytes())}


def test_the_id_depends_on_owner_dtype_shape_and_content(store: SpoolStore, tmp_path: Path) -> None:
    zeros = np.zeros(4)
    others = [
        put(store, zeros, B),
        put(store, zeros.view("int64")),
        put(store, zeros.reshape(2, 2)),
        put(store, zeros + 1),
    ]
    elsewhere = put(SpoolStore(tmp_path / "other"), zeros)
    ids = {stored.id for stored in [put(store, zeros), *others, elsewhere]}
    assert len(ids) == 6


def test_another_owners_array_does_not_exist(store: SpoolStore) -> None:
    stored = put(store, np.arange(3.0))
    assert store.find(A, stored.id) == stored
    assert store.find(B, stored.id) is None
    assert not store.path(B, stored.id).exists()
    assert not store.delete(B, stored.id)
    assert store.find(A, stored.id) == stored


@pytest.mark.parametrize(
    "array_id",
    [
        "",
        "blake3:",
        "blake3:" + "0" * 63,
        "blake3:" + "G" * 64,
        "md5:" + "0" * 64,
        "blake3:../../../secret",
        MISSING + "\n",
        MISSING.upper(),
    ],
)
def test_a_malformed_id_names_nothing(store: SpoolStore, array_id: str) -> None:
    assert store.find(A, array_id) is None
    assert not store.delete(A, array_id)
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        store.path(A, array_id)


@pytest.mark.parametrize(
    "name", ["", "..", "../secret", "job_1", "job_1.", "job_1.1/..", "job_1.1\n", "a" * 200 + ".1"]
)
def test_a_malformed_result_name_names_nothing(store: SpoolStore, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a result"):
        store.result(name)


def test_too_many_or_too_few_bytes_are_refused_with_the_numbers(store: SpoolStore, tmp_path: Path) -> None:
    before = files(store, tmp_path)
    with store.writer(A, "float64", (2,), 60) as writer:
        writer.take(bytes(8))
        with pytest.raises(ValueError, match="has 16 bytes, got at least 17"):
            writer.take(bytes(9))
    with store.writer(A, "float64", (2,), 60) as writer:
        writer.take(bytes(15))
        with pytest.raises(ValueError, match="has 16 bytes, got 15"):
            writer.commit(has_nan=False, has_inf=False)
    assert files(store, tmp_path) == before


def test_one_thread_writes_while_another_takes_more(store: SpoolStore) -> None:
    array = np.arange(200_000.0)
    data = memoryview(array.tobytes())
    done = Event()

    def flush(writer: SpoolWriter) -> None:
        while not done.is_set():
            writer.flush()

    with store.writer(A, "float64", array.shape, 60) as writer, ThreadPoolExecutor(1) as thread:
        flushing = thread.submit(flush, writer)
        try:
            for start in range(0, len(data), 1000):
                writer.take(data[start : start + 1000])
        finally:
            done.set()
        flushing.result()
        stored = writer.commit(has_nan=False, has_inf=False)
    np.testing.assert_array_equal(np.load(store.path(A, stored.id)), array)


@pytest.mark.parametrize("most", [1, 999, 4096])
def test_what_the_kernel_leaves_of_a_write_is_written_after_it(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda file, chunks: real(file, [b"".join(chunks)[:most]]))
    array = np.arange(3000.0)
    stored = put(store, array, pieces=7)
    np.testing.assert_array_equal(np.load(store.path(A, stored.id)), array)


def test_an_upload_takes_no_more_of_the_disk_than_a_stretch_ahead(
    store: SpoolStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdesk_server.workers.store.npy_writer._RESERVED_AT_ONCE", 1 << 20)
    array = np.arange(1_000_000.0)
    data = memoryview(array.tobytes())
    with store.writer(A, "float64", array.shape, 60) as writer:
        for start in range(0, len(data), 300_000):
            writer.take(data[start : start + 300_000])
            writer.flush()
            (file,) = (tmp_path / "spool" / "uploads").iterdir()
            assert file.stat().st_blocks * 512 <= start + 300_000 + (1 << 20) + 8192
        stored = writer.commit(has_nan=False, has_inf=False)
    np.testing.assert_array_equal(np.load(store.path(A, stored.id)), array)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF])
def test_a_file_system_that_reserves_nothing_is_written_all_the_same(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(file: int, offset: int, length: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    array = np.arange(300_000.0)
    np.testing.assert_array_equal(np.load(store.path(A, put(store, array).id)), array)


def test_an_upload_that_stops_in_the_middle_reserves_at_most_twice_what_came(store: SpoolStore, tmp_path: Path) -> None:
    with store.writer(A, "float64", (100_000_000,), 60) as writer:
        for number in range(1, 9):
            writer.take(bytes(300_000))
            writer.flush()
            held = sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*.npy"))
            assert number * 300_000 <= held <= 2 * number * 300_000 + 8192


def test_an_emulated_reservation_may_read_the_file(store: SpoolStore) -> None:
    with store.writer(A, "float64", (2,), 60) as writer:
        writer.flush()
        assert writer._stream is not None
        assert os.pread(writer._stream.fileno(), 6, 0) == b"\x93NUMPY"


def test_unique_arrays_of_the_same_content_are_erased_one_by_one(store: SpoolStore) -> None:
    ids = set()
    for _ in range(2):
        with store.writer(A, "float64", (1,), 60, unique=True) as writer:
            writer.take(bytes(8))
            ids.add(writer.commit(has_nan=False, has_inf=False).id)
    first, second = ids
    assert store.delete(A, first)
    assert store.find(A, second) is not None
    assert np.load(store.path(A, second)) == 0


def test_an_array_uploaded_while_it_is_deleted_is_there_whole_or_not_at_all(store: SpoolStore) -> None:
    array = np.arange(3.0)
    array_id = put(store, array).id
    with ThreadPoolExecutor(2) as threads:
        for _ in range(500):
            putting, deleting = threads.submit(put, store, array), threads.submit(store.delete, A, array_id)
            putting.result(), deleting.result()
            assert (store.find(A, array_id) is not None) == store.path(A, array_id).exists()


def test_an_upload_that_is_left_leaves_nothing(store: SpoolStore, tmp_path: Path) -> None:
    before = files(store, tmp_path)
    with store.writer(A, "float64", (2,), 60) as writer:
        writer.take(bytes(8))
        writer.flush()
        assert files(store, tmp_path) != before
    assert files(store, tmp_path) == before


def test_everything_is_for_this_user_only(store: SpoolStore, tmp_path: Path) -> None:
    put(store, np.arange(3.0))
    store.new_result("job_1", 1)
    root = tmp_path / "spool"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "secret").stat().st_mode) == 0o600
    for directory in root.rglob("*"):
        if directory.is_dir():
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_two_processes_share_one_secret(store: SpoolStore, tmp_path: Path) -> None:
    again = SpoolStore(tmp_path / "spool")
    array = np.arange(3.0)
    assert put(again, array).id == put(store, array).id


@pytest.mark.parametrize(("damage", "problem"), [(None, "is gone"), (b"", "has 0 bytes"), (b"x" * 31, "has 31 bytes")])
def test_a_store_whose_secret_is_lost_is_refused(
    store: SpoolStore, tmp_path: Path, damage: bytes | None, problem: str
) -> None:
    put(store, np.arange(3.0))
    secret = tmp_path / "spool" / "secret"
    secret.unlink()
    if damage is not None:
        secret.write_bytes(damage)

    for _ in range(2):
        with pytest.raises(UnusableStore, match=f"the store's secret {secret} {problem}.*put it back from a backup"):
            SpoolStore(tmp_path / "spool")


def test_an_array_past_its_time_is_not_found_and_swept_unless_a_job_reads_it(store: SpoolStore, tmp_path: Path) -> None:
    old, read, young = (
        put(store, np.arange(1.0), ttl=-1),
        put(store, np.arange(2.0), B, ttl=-1),
        put(store, np.arange(3.0)),
    )
    assert store.find(A, old.id) is None
    assert store.sweep(lambda owner, array_id: (owner, array_id) == (B, read.id)) == 1
    assert not store.path(A, old.id).exists()
    assert store.path(B, read.id).exists()
    assert store.find(A, young.id) == young
    assert store.sweep(lambda owner, array_id: False) == 1
    assert not store.path(B, read.id).exists()


def test_uploading_again_prolongs_an_arrays_life_and_never_shortens_it(store: SpoolStore) -> None:
    first = put(store, np.arange(3.0), ttl=100)
    assert put(store, np.arange(3.0), ttl=50).expires_at == first.expires_at
    assert put(store, np.arange(3.0), ttl=200).expires_at > first.expires_at
    assert put(store, np.arange(3.0), ttl=200).created_at == first.created_at


def test_a_deleted_array_is_gone(store: SpoolStore) -> None:
    stored = put(store, np.arange(3.0))
    assert store.delete(A, stored.id)
    assert store.find(A, stored.id) is None
    assert not store.path(A, stored.id).exists()
    assert not store.delete(A, stored.id)


def test_a_result_is_one_attempts_own_and_starts_empty(store: SpoolStore) -> None:
    first = store.new_result("job_1", 1)
    (first / "x.npy").write_bytes(b"left by a killed process")
    second = store.new_result("job_1", 2)
    assert (first.name, second.name) == (result_name("job_1", 1), result_name("job_1", 2))
    assert first != second
    assert list(store.new_result("job_1", 1).iterdir()) == []
    store.delete_result("job_1.1")
    store.delete_result("job_1.1")
    assert not first.exists()
    assert second.exists()


FILES = ["result.json", "rsi.npy"]


@pytest.mark.parametrize("files", [FILES, ["result.json", *(f"output_{number:02}.npy" for number in range(40))]])
def test_a_result_made_ahead_is_one_attempts_own(store: SpoolStore, tmp_path: Path, files: list[str]) -> None:
    store.make_ahead(files)
    store.make_ahead(files)  # it is there
    ahead = tmp_path / "spool" / "ahead"
    assert len(list(ahead.iterdir())) == 1
    other, first, second = (
        store.new_result("job_1", attempt, wanted) for attempt, wanted in enumerate((["result.json"], files, files))
    )
    assert [path.name for path in (other, first, second)] == ["job_1.0", "job_1.1", "job_1.2"]
    assert [sorted(path.name for path in made.iterdir()) for made in (other, first, second)] == [[], sorted(files), []]
    assert {path.stat().st_size for path in first.iterdir()} == {0}
    assert list(ahead.iterdir()) == []


def test_an_attempt_that_left_something_starts_empty_whatever_was_made_ahead(store: SpoolStore) -> None:
    (store.new_result("job_1", 1) / "x.npy").write_bytes(b"left by a killed process")
    store.make_ahead(FILES)
    assert list(store.new_result("job_1", 1, FILES).iterdir()) == []


def test_what_was_made_ahead_half_a_day_ago_is_not_used_and_swept_when_it_is_a_day_old(
    store: SpoolStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.make_ahead(FILES)
    (made,) = (tmp_path / "spool" / "ahead").iterdir()
    later = time.time() + 12 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert list(store.new_result("job_1", 1, FILES).iterdir()) == []
    assert store.sweep(lambda owner, array_id: False) == 0
    a_day_ago = later - 25 * 3600
    os.utime(made, (a_day_ago, a_day_ago))
    assert store.sweep(lambda owner, array_id: False) == 1
    assert not made.exists()


def test_sweep_removes_results_past_their_time_and_attempts_nobody_finished(store: SpoolStore) -> None:
    fresh, unfinished, abandoned, expired = (store.new_result("job_1", attempt) for attempt in range(4))
    (fresh / "result.json").write_text(f'{{"expires_at": {time.time() + 60}}}')
    (expired / "result.json").write_text('{"expires_at": 1.0}')
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(abandoned, (two_days_ago, two_days_ago))
    assert store.sweep(lambda owner, array_id: False) == 2
    assert [directory.exists() for directory in (fresh, unfinished, abandoned, expired)] == [True, True, False, False]


def test_an_adopted_result_file_is_an_array_of_its_owner_without_a_copy(store: SpoolStore) -> None:
    array = np.arange(5.0)
    file = store.new_result("job_1", 1) / "rsi.npy"
    np.save(file, array)
    info = ArrayInfo("float64", (5,))
    array_id = store.digest(A, "float64", (5,), array.tobytes())
    stored = store.adopt(A, file, array_id, info, ttl=60)
    assert stored == store.find(A, array_id)
    assert store.path(A, array_id).stat().st_ino == file.stat().st_ino
    assert store.adopt(A, file, array_id, info, ttl=60).id == array_id
    assert file.stat().st_nlink == 2  # adopted again, it leaves no third link behind
    store.delete_result("job_1.1")
    np.testing.assert_array_equal(np.load(store.path(A, array_id)), array)
    assert put(store, array).id == array_id


def test_a_result_from_another_host_is_there_whole_or_not_at_all(store: SpoolStore, tmp_path: Path) -> None:
    array = np.arange(5.0)
    incoming, left = store.incoming("job_1.1", A), store.incoming("job_2.1", A)
    for result in (incoming, left):
        writer = result.writer("rsi.npy", "float64", (5,))
        writer.take(array.tobytes())
        assert writer.finish() == store.digest(A, "float64", (5,), array.tobytes())
    assert list((tmp_path / "spool" / "results").iterdir()) == []
    incoming.move("{}")
    incoming.discard()
    np.testing.assert_array_equal(np.load(store.result("job_1.1") / "rsi.npy"), array)
    (abandoned,) = (tmp_path / "spool" / "uploads").iterdir()
    assert store.sweep(lambda owner, array_id: False) == 0
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(abandoned, (two_days_ago, two_days_ago))
    assert store.sweep(lambda owner, array_id: False) == 1
    assert not abandoned.exists()


def fill(disk: SpoolWriter) -> None:
    """Let the disk be full under an upload that has begun: a device that refuses whatever is written to it."""
    disk.flush()
    assert disk._stream is not None
    disk._stream.close()
    disk._stream = open("/dev/full", "wb", buffering=0)  # noqa: SIM115, PTH123


@pytest.mark.parametrize("end", ["commit", "flush"])
def test_an_upload_that_a_full_disk_refuses_leaves_nothing(store: SpoolStore, tmp_path: Path, end: str) -> None:
    def upload() -> None:
        with store.writer(A, "float64", (2,), 60) as writer:
            fill(writer)
            writer.take(bytes(16))
            if end == "flush":
                writer.flush()
            writer.commit(has_nan=False, has_inf=False)

    before = files(store, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        upload()
    assert files(store, tmp_path) == before


@pytest.mark.parametrize(
    "damage", [b"", b'{"info": {"dty', b"\xff\xfe", b"[]", b"{}", b'{"info": 3, "expires_at": null}']
)
def test_an_array_with_a_damaged_description_does_not_exist_and_is_swept_once_old(
    store: SpoolStore, tmp_path: Path, damage: bytes
) -> None:
    broken, expired, foreign = (
        put(store, np.arange(3.0)),
        put(store, np.arange(4.0), ttl=-1),
        put(store, np.arange(5.0), B, ttl=-1),
    )
    file = store.path(A, broken.id)
    file.with_suffix(".json").write_bytes(damage)
    assert store.find(A, broken.id) is None
    assert store.sweep(lambda owner, array_id: False) == 2  # the others, as ever
    assert not store.path(A, expired.id).exists()
    assert not store.path(B, foreign.id).exists()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(file, (two_days_ago, two_days_ago))
    assert store.sweep(lambda owner, array_id: True) == 0  # a live job maps it
    assert store.sweep(lambda owner, array_id: False) == 1
    assert not file.exists()
    assert not file.with_suffix(".json").exists()


def test_an_array_with_a_damaged_description_is_repaired_by_uploading_it_again(store: SpoolStore) -> None:
    array = np.arange(3.0)
    broken = put(store, array)
    store.path(A, broken.id).with_suffix(".json").write_bytes(b"{")
    again = put(store, array)
    assert again.id == broken.id
    assert store.find(A, broken.id) == again


def test_an_array_with_damaged_content_is_repaired_by_uploading_it_again(store: SpoolStore) -> None:
    array = np.arange(3.0)
    broken = put(store, array)
    store.path(A, broken.id).write_bytes(bytes(152))
    assert put(store, array).id == broken.id
    np.testing.assert_array_equal(np.load(store.path(A, broken.id)), array)


def test_a_result_with_a_damaged_document_is_swept_once_old_and_not_before(store: SpoolStore) -> None:
    directory = store.new_result("job_1", 1)
    (directory / "result.json").write_bytes(b'{"expires_')
    assert store.sweep(lambda owner, array_id: False) == 0
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(directory, (two_days_ago, two_days_ago))
    assert store.sweep(lambda owner, array_id: False) == 1
    assert not directory.exists()


def test_what_is_no_owners_directory_does_not_end_the_sweep(store: SpoolStore, tmp_path: Path) -> None:
    owners = tmp_path / "spool" / "owners"
    (owners / "0-a-file").write_text("")
    (owners / "1-garbled").mkdir()
    (owners / "1-garbled" / "owner").write_bytes(b"\xff")
    old = put(store, np.arange(3.0), ttl=-1)
    assert store.sweep(lambda owner, array_id: False) == 1
    assert not store.path(A, old.id).exists()


def test_a_new_store_has_nothing_of_an_earlier_release_to_be_signed(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    root.mkdir()  # as a volume is
    assert SpoolStore(root).records_signed
    (root / "records-signed").unlink()
    older = SpoolStore(root)
    assert not older.records_signed
    assert "not signed yet" in (older.trouble() or "")
    SpoolStore(root).note_signed_records()
    assert older.trouble() is None
