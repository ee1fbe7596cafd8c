"""Record logs: a record is whole or not there, wherever its writer was cut off, and what was acknowledged stays."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from warpdesk_server.workers.store.record_logs import DamagedLog, LogExists, NoLog, Record, RecordLogs, TooManyLogs
from warpdesk_server.workers.store.spool import SpoolStore
from warpdesk_server.workers.store.usage import Quota, QuotaPassed

QUOTA = Quota(of_owner=80_000, in_all=90_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpoolStore]:
    with closing(SpoolStore(tmp_path, kept_free=0, quota=QUOTA)) as made:
        yield made


def records(logs: RecordLogs, name: str = "us") -> list[Record]:
    with logs.reading("key_a", name) as log, log.shared():
        return log.records()


def append(logs: RecordLogs, text: str, payload: bytes = b"", name: str = "us") -> None:
    with logs.writing("key_a", name) as log:
        log.append(log.records()[-1], {"text": text}, [payload])


def texts(logs: RecordLogs) -> list[str]:
    return [record.header["text"] for record in records(logs)]


def file(store: SpoolStore) -> Path:
    (found,) = (store._root / "datasets").rglob("us.log")
    return found


def test_records_come_back_in_order_with_their_payloads(store: SpoolStore) -> None:
    store.logs.create("key_a", "us", {"text": "first"}, 10)
    for number in range(3):
        append(store.logs, f"record {number}", bytes([number]) * 8 * number)
    assert texts(store.logs) == ["first", "record 0", "record 1", "record 2"]
    with store.logs.reading("key_a", "us") as log, log.shared():
        found = log.records()
        content = log.content(found[-1].end)
        assert [content[record.start : record.end] for record in found[2:]] == [b"\x01" * 8, b"\x02" * 16]
        assert all(record.start % 8 == 0 for record in found)
        assert [record.header for record in log.records(found[1])] == [record.header for record in found[2:]]


def test_an_append_that_was_cut_off_at_any_byte_is_not_there_and_the_next_takes_its_place(store: SpoolStore) -> None:
    store.logs.create("key_a", "us", {"text": "first"}, 10)
    append(store.logs, "kept", b"12345678")
    before = file(store).read_bytes()
    append(store.logs, "cut off", b"abcdefgh" * 3)
    whole = file(store).read_bytes()
    for size in range(len(before), len(whole)):
        for rest in (b"", bytes(len(whole) - size)):  # a file system may have kept its length and not its bytes
            file(store).write_bytes(whole[:size] + rest)
            assert texts(store.logs) == ["first", "kept"] + ["cut off"] * (whole[:size] + rest == whole)
    append(store.logs, "next", b"87654321")
    assert texts(store.logs) == ["first", "kept", "next"]


def test_a_record_that_is_damaged_before_whole_ones_is_an_error_and_cuts_nothing_off(store: SpoolStore) -> None:
    store.logs.create("key_a", "us", {"text": "first"}, 10)
    for number in range(3):
        append(store.logs, f"record {number}", b"12345678")
    content = bytearray(file(store).read_bytes())
    at = records(store.logs)[1].end
    content[at] ^= 1
    file(store).write_bytes(content)
    with pytest.raises(DamagedLog, match=f"the log us is damaged at byte {at} of {len(content)}"):
        append(store.logs, "next")
    assert file(store).read_bytes() == content


def test_without_forced_files_what_a_power_cut_damaged_is_cut_off(tmp_path: Path) -> None:
    with closing(SpoolStore(tmp_path, "everysec", kept_free=0)) as store:
        store.logs.create("key_a", "us", {"text": "first"}, 10)
        for number in range(3):
            append(store.logs, f"record {number}", b"12345678")
        content, found = bytearray(file(store).read_bytes()), records(store.logs)
        content[found[2].start] ^= 1
        file(store).write_bytes(content)
        assert texts(store.logs) == ["first", "record 0"]
        append(store.logs, "next")
        assert texts(store.logs) == ["first", "record 0", "next"]


def test_an_append_that_the_disk_refuses_leaves_the_log_as_it_was(
    store: SpoolStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.logs.create("key_a", "us", {"text": "first"}, 10)
    before, used = file(store).read_bytes(), store.stored("key_a")

    def refuse(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", lambda _: None)  # of the look before it
        with store.logs.writing("key_a", "us") as log:
            last = log.records()[-1]
            patched.setattr(os, "fdatasync", refuse)
            with pytest.raises(OSError, match="Input/output error"):
                log.append(last, {"text": "lost"}, [b"12345678"])
    assert (file(store).read_bytes(), store.stored("key_a")) == (before, used)


def test_the_quota_counts_logs_by_their_blocks_and_a_recount_finds_what_a_killed_process_has_not_noted(
    store: SpoolStore,
) -> None:
    store.logs.create("key_a", "us", {"text": "first"}, 10)
    append(store.logs, "large", bytes(20_000))
    assert store.stored("key_a") == (20_480, 80_000)
    with pytest.raises(QuotaPassed, match="stores 20480 bytes and would store 61440 more; its quota is 80000"):
        append(store.logs, "more", bytes(60_000))
    assert store.stored("key_a")[0] == 20_480
    store.sync()
    assert store.stored("key_a")[0] == 20_480
    other = SpoolStore(store._root, kept_free=0)  # it counts nothing, as a process that is killed
    append(other.logs, "not counted", bytes(8_192))
    store._usage._looked_at = 0.0  # type: ignore[union-attr]
    recounted = store._usage
    assert recounted is not None
    recounted.recount({}, {}, 1e10, logs={("key_a", "us"): 32_768, ("key_b", "eu"): 4_096})
    assert [store.stored(owner)[0] for owner in ("key_a", "key_b")] == [32_768, 4_096]
    recounted.recount({}, {}, 2e10, logs={("key_a", "us"): 32_768})
    assert store.stored("key_b")[0] == 0
    store.logs.delete("key_a", "us")
    store.sync()
    assert store.stored("key_a")[0] == 0
    with pytest.raises(NoLog):
        records(store.logs)


def test_a_recount_reads_the_sizes_of_logs_from_the_files(store: SpoolStore) -> None:
    store.logs.create("key_a", "us", {"text": "first"}, 10)
    append(store.logs, "large", bytes(20_000))
    assert store._usage is not None
    store.sync()
    store._usage._apply(store._usage._opened(), [("UPDATE logs SET bytes = 4096, changed_at = 0", (), 0)])
    store.sync()
    assert store.stored("key_a")[0] == 4_096
    store.recount()
    assert store.stored("key_a")[0] == 20_480


def test_an_owner_has_as_many_logs_as_it_may_and_each_name_once(store: SpoolStore) -> None:
    def create(number: int) -> str:
        try:
            store.logs.create("key_a", f"log{number % 4}", {"number": number}, 3)
        except (LogExists, TooManyLogs) as error:
            return type(error).__name__
        return "made"

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(create, range(16)))
    assert answers.count("made") == 3
    assert len(store.logs.names("key_a")) == 3
    assert store.logs.names("key_b") == []
    assert not list((store._root / "uploads").iterdir())


def test_a_writer_that_waited_while_the_log_was_deleted_is_told(store: SpoolStore) -> None:
    store.logs.create("key_a", "us", {"text": "first"}, 10)
    with ThreadPoolExecutor(1) as threads:
        with store.logs.writing("key_a", "us"):
            waiting = threads.submit(append, store.logs, "late")
            file(store).unlink()
        with pytest.raises(NoLog):
            waiting.result()


def test_no_name_leads_out_of_the_owners_directory(store: SpoolStore) -> None:
    store.logs.create("key_b", "us", {"text": "of another"}, 10)
    for name in (f"../{file(store).parent.name}/us", "..", "", "us\n", "us/", f"{file(store).with_suffix('')}"):
        with pytest.raises(NoLog):
            records(store.logs, name)
