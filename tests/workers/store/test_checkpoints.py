"""The files of checkpoints in a store: what Redis names can be read, and there are few of them."""

import errno
import os
from pathlib import Path

import pytest

from warpdesk_server.workers.store.checkpoints import CheckpointFiles

JOB = "job_1"


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    return CheckpointFiles(tmp_path / "checkpoints", forced=True)


def keep(files: CheckpointFiles, *names: str) -> None:
    for name in names:
        files.keep(JOB, name, lambda file, name=name: file.write(name.encode()) and None, 100)  # type: ignore[misc]


def read(files: CheckpointFiles, name: str) -> list[str]:
    return [file.read().decode() for file in files.open(JOB, name)]


def test_the_named_one_comes_first_and_then_the_others(files: CheckpointFiles) -> None:
    keep(files, "1.5", "1.6")
    assert read(files, "1.6") == ["1.6", "1.5"]
    assert read(files, "1.5") == ["1.5", "1.6"]


def test_where_the_named_one_is_gone_a_later_one_is_read(files: CheckpointFiles) -> None:
    """Its attempt made more of them than Redis has heard of, and died."""
    keep(files, "1.5", "1.6", "1.7", "1.8")
    assert read(files, "1.5") == ["1.8", "1.7"]


def test_who_has_lost_its_claim_leaves_the_latest_of_the_attempt_that_runs(files: CheckpointFiles) -> None:
    keep(files, "1.5", "2.6", "1.7", "1.8", "1.9")
    assert read(files, "2.6") == ["2.6", "1.9"]


def test_there_are_two_at_most_in_whatever_order_they_come(files: CheckpointFiles) -> None:
    keep(files, *(f"1.{step}" for step in range(40, 0, -1)))
    assert read(files, "1.1") == ["1.1", "1.40"]


def test_what_a_killed_process_left_goes_with_the_next_one(files: CheckpointFiles, tmp_path: Path) -> None:
    keep(files, "1.1")
    (tmp_path / "checkpoints" / JOB / "0123.part").write_bytes(b"half")
    keep(files, "2.2")
    assert sorted(file.name for file in (tmp_path / "checkpoints" / JOB).iterdir()) == ["1.1", "2.2"]


def test_one_that_is_too_large_is_refused_while_it_is_written(files: CheckpointFiles, tmp_path: Path) -> None:
    pieces = 0

    def write(file: object) -> None:
        nonlocal pieces
        for _ in range(1000):
            file.write(bytes(1 << 16))  # type: ignore[attr-defined]
            pieces += 1

    keep(files, "1.1")
    with pytest.raises(OSError, match="takes more than the 100 bytes that the task declares") as refusal:
        files.keep(JOB, "1.2", write, 100)
    assert (refusal.value.errno, pieces) == (errno.EFBIG, 0)
    assert [file.name for file in (tmp_path / "checkpoints" / JOB).iterdir()] == ["1.1"]


@pytest.mark.parametrize("name", ["", "1", "1.x", "../1.1", "1.1.1", "-1.1", "1.1\n"])
def test_a_name_that_is_none_touches_nothing(files: CheckpointFiles, name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not the name of a checkpoint"):
        keep(files, name)
    with pytest.raises(ValueError, match="is not the name of a checkpoint"):
        read(files, name)
    assert files.jobs() == []


def test_a_deleted_jobs_are_gone(files: CheckpointFiles) -> None:
    keep(files, "1.1")
    assert files.jobs() == [JOB]
    files.delete(JOB)
    files.delete(JOB)
    assert files.jobs() == []


def test_a_worker_that_writes_while_they_are_deleted_stops_nobody(
    files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that computes a shard of a job that another ends."""
    keep(files, "0.1")
    rmdir = os.rmdir

    def late(path: str, **options: int) -> None:
        monkeypatch.undo()
        (Path(path) / "1.1").touch()
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", late)
    files.delete(JOB)
    (left,) = files.jobs()
    files.delete(left)  # as the sweep does, since there is no such job
    assert files.jobs() == []
