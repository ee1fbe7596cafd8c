"""What was promised is on the disk: the disk is looked at as a power cut would leave it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.power_cut import Disk, small_disk
from tests.workers.store.test_store import A, B, put
from warpdesk.durable import force
from warpdesk_server.workers.store import arrays as arrays
from warpdesk_server.workers.store import disk, npy
from warpdesk_server.workers.store.spool import SpoolStore

ALONE, AS_A_WHOLE = "each file by itself", "the file system as a whole"


@pytest.fixture
def power(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path) as made:
        yield made


@pytest.fixture(params=[ALONE, AS_A_WHOLE])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Force results this way, whatever else waits to be written on this machine."""
    monkeypatch.setattr(disk, "_LITTLE", -1 if request.param == ALONE else 1 << 60)
    chosen: str = request.param
    return chosen


def results(store: SpoolStore, count: int) -> list[str]:
    """The first of them in a directory that was made ahead."""
    files, names = ["result.json", "rsi.npy"], []
    store.make_ahead(files)
    for number in range(count):
        directory = store.new_result(f"job_{number}", 1, files)
        (directory / "rsi.npy").write_bytes(npy.header("float64", (3,)) + np.full(3, float(number)).tobytes())
        (directory / "result.json").write_text(f'{{"expires_at": {number}.5}}')
        names.append(directory.name)
    return names


def read(store: SpoolStore, name: str) -> Any:
    directory = store.result(name)
    return np.load(directory / "rsi.npy").tolist(), (directory / "result.json").read_text()


def test_the_disk_of_these_tests_forgets_what_was_not_forced(power: Disk) -> None:
    def lost() -> bool:
        store = SpoolStore(power.path / "spool", "everysec")
        array, (result,) = put(store, np.arange(1000.0)), results(store, 1)
        assert store.finish_results([result]) == {}
        after = SpoolStore(power.cut() / "spool")
        return after.find(A, array.id) is None and not after.result(result).exists()

    assert any(lost() for _ in range(3))  # (someone else may have everything written, at any moment)


def test_a_published_array_survives_a_power_cut(power: Disk, way: str) -> None:
    store = SpoolStore(power.path / "spool")
    first, second = np.arange(1000.0), np.arange(300_000.0)
    stored = [put(store, first), put(store, first, B), put(store, second, pieces=5)]
    after = SpoolStore(power.cut() / "spool")
    assert [after.find(owner, array.id) for owner, array in zip((A, B, A), stored, strict=True)] == stored
    np.testing.assert_array_equal(np.load(after.path(B, stored[1].id)), first)
    np.testing.assert_array_equal(np.load(after.path(A, stored[2].id)), second)
    assert put(after, second).id == stored[2].id  # the secret survived too


def after_cut(power: Disk, monkeypatch: pytest.MonkeyPatch) -> SpoolStore:
    """The store as the machine finds it when it has started again."""
    monkeypatch.setattr(arrays, "boot", lambda: "the next start")
    return SpoolStore(power.cut() / "spool")


@pytest.mark.parametrize("size", [1000, 40_000])
def test_a_power_cut_at_any_step_of_an_upload_leaves_the_array_whole_or_absent(
    power: Disk, monkeypatch: pytest.MonkeyPatch, way: str, size: int
) -> None:
    store, array = SpoolStore(power.path / "spool"), np.arange(float(size))
    owner = store.path(A, put(store, np.zeros(1)).id).parent
    array_id = store.digest(A, "float64", array.shape, array.tobytes())
    found = []

    def cut() -> None:
        """After others had the file system's journal written, and the system whatever it likes of the files."""
        (power.path / "other").write_text(str(len(found)))
        force(power.path / "other", *owner.glob("*.json"))
        with monkeypatch.context() as later:
            after = after_cut(power, later)
            shown = after.path(A, array_id).with_suffix(".json").exists()
            there = after.find(A, array_id)
            assert there is None or np.array_equal(np.load(after.path(A, array_id)), array)
            found.append((shown, there is not None))

    def cut_before(step: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any) -> Any:
            cut()
            return step(*arguments)

        return stepping

    with monkeypatch.context() as steps:
        steps.setattr(Path, "replace", cut_before(Path.replace))
        steps.setattr(arrays, "force_files", cut_before(disk.force_files))
        steps.setattr(arrays, "force", cut_before(force))
        put(store, array)
    cut()
    assert found[0] == (False, False)
    assert found[-1] == (True, True)
    if size == 1000:
        assert (True, False) in found  # it was shown, and its content was not on the disk


@pytest.mark.parametrize(
    "damage",
    [lambda content: b"", lambda content: content[:-8], lambda content: content[:128] + bytes(len(content) - 128)],
    ids=["empty", "cut short", "zeros"],
)
def test_a_small_array_of_which_a_power_cut_left_something_else_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    store, array = SpoolStore(tmp_path), np.arange(100.0)
    kept, lost = put(store, array), put(store, array + 1)
    file = store.path(A, lost.id)
    file.write_bytes(damage(file.read_bytes()))
    monkeypatch.setattr(arrays, "boot", lambda: "the next start")
    assert store.find(A, lost.id) is None
    assert not file.exists()
    assert store.find(A, kept.id) == kept
    assert store.info_of(A, kept.id) == kept.info
    again = put(store, array + 1)
    assert store.find(A, lost.id) == again
    np.testing.assert_array_equal(np.load(file), array + 1)


def written(file: Path) -> tuple[int, int, int]:
    """Which file it is and when it was written; reading it changes neither."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def test_content_that_is_there_is_not_written_again_and_its_longer_life_survives_a_power_cut(
    power: Disk, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store, array = SpoolStore(power.path / "spool"), np.arange(1000.0)
    first = put(store, array, ttl=60)
    file = written(store.path(A, first.id))
    again = put(store, array, ttl=600)
    assert again.expires_at >= first.expires_at + 540
    assert written(store.path(A, first.id)) == file
    after = after_cut(power, monkeypatch)
    assert after.find(A, first.id) == again


def test_a_power_cut_does_not_bring_back_what_was_deleted(power: Disk) -> None:
    store = SpoolStore(power.path / "spool")
    stored, (result,) = put(store, np.arange(10.0)), results(store, 1)
    store.finish_results([result])
    store.delete(A, stored.id)
    store.delete_result(result)
    after = SpoolStore(power.cut() / "spool")
    assert after.find(A, stored.id) is None
    assert not after.path(A, stored.id).exists()
    assert not after.result(result).exists()


def test_an_adopted_result_survives_a_power_cut(power: Disk) -> None:
    store = SpoolStore(power.path / "spool")
    (name,) = results(store, 1)
    store.finish_results([name])
    file = store.result(name) / "rsi.npy"
    info, start = npy.read_header(file.read_bytes())
    data = file.read_bytes()[start:]
    stored = store.adopt(A, file, store.digest(A, info.dtype, info.shape, data), info, 60)
    after = SpoolStore(power.cut() / "spool")
    assert after.find(A, stored.id) == stored
    assert np.load(after.path(A, stored.id)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("count", [1, 64])
def test_finished_results_survive_a_power_cut(power: Disk, way: str, count: int) -> None:
    store = SpoolStore(power.path / "spool")
    names = results(store, count)
    expected = [read(store, name) for name in names]
    assert store.finish_results(names) == {}
    after = SpoolStore(power.cut() / "spool")
    assert [read(after, name) for name in names] == expected


def forced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are forced from now on, by the names they have at that moment."""
    paths: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


@pytest.mark.parametrize(("size", "unique"), [(40_000, False), (2, True)], ids=["large", "of an id of its own"])
def test_contents_that_prove_nothing_are_forced_before_the_moves_that_show_them_and_the_moves_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, size: int, unique: bool
) -> None:
    store = SpoolStore(tmp_path)
    put(store, np.zeros(2))  # it makes the owner's directory
    paths = forced(monkeypatch)

    def force_all_of(path: Path) -> bool:
        paths.extend(map(str, path.iterdir()))
        return True

    monkeypatch.setattr(disk, "_force_all_of", force_all_of)
    stored = put(store, np.ones(size), unique=unique)
    content, description, moves = map(Path, paths)
    assert content.parent == description.parent == tmp_path / "uploads"
    assert moves == store.path(A, stored.id).parent


def test_with_durability_everysec_nothing_is_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    store = SpoolStore(tmp_path, "everysec")
    paths = forced(monkeypatch)
    monkeypatch.setattr(disk, "_force_all_of", lambda path: paths.append(str(path)))
    stored = put(store, np.ones(2))
    store.finish_results(results(store, 2))
    store.delete(A, stored.id)
    store.delete_result("job_0.1")
    assert paths == []


@pytest.mark.parametrize(
    ("release", "tells"),
    [("5.8.0-amd64", True), ("5.7.19", False), ("4.19.0", False), ("6.1-rc3", True), ("10.0.1", True), ("odd", False)],
)
def test_a_kernel_that_does_not_tell_of_failed_writes_is_not_asked_for_all_at_once(release: str, tells: bool) -> None:
    assert disk._tells(release) is tells


def test_a_file_system_that_may_not_wait_is_not_forced_as_a_whole() -> None:
    assert not disk._force_all_of(Path("/proc"))


def test_an_array_that_the_disk_refuses_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    store = SpoolStore(tmp_path)
    put(store, np.zeros(2))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(os, "fsync", refuse(28))
    monkeypatch.setattr(disk, "_force_all_of", refuse(28))
    with pytest.raises(OSError, match="No space left"):
        put(store, np.ones(2))
    assert sorted(tmp_path.rglob("*")) == before


def refuse(number: int) -> Callable[..., Any]:
    def raising(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return raising


def test_results_that_the_disk_refuses_are_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = SpoolStore(tmp_path)
    names = results(store, 2)
    monkeypatch.setattr(os, "fsync", refuse(28))
    monkeypatch.setattr(disk, "_force_all_of", refuse(28))
    refused = store.finish_results(names)
    assert {name: error.errno for name, error in refused.items()} == {names[0]: 28, names[1]: 28}
