"""The table of what is stored: exact within a process, shared with others, and made again where it is lost."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from warpdesk_server.workers.store.usage import Quota, QuotaPassed, StoreFull, Usage

ARRAY, OTHER = (f"blake3:{digit * 64}" for digit in "ab")
QUOTA = Quota(of_owner=1000, in_all=1500)


Open = Callable[[], Usage]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens the table as one more process would."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Usage(tmp_path / "usage", QUOTA)))


def test_owners_at_once_do_not_pass_a_quota_together(opened: Open) -> None:
    usage = opened()

    def add(number: int) -> bool:
        try:
            usage.add_job("key_a", f"job_{number}", 100, [])
        except QuotaPassed:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(add, range(40))) == 10
    with pytest.raises(StoreFull, match="600 bytes more would be over the limit of what all keys store together, 1500"):
        usage.add_job("key_b", "job_b", 600, [])
    assert (usage.used("key_a"), usage.used_by_all()) == (1000, 1000)


def test_another_process_sees_what_was_stored_and_what_was_deleted(opened: Open) -> None:
    here, there = opened(), opened()
    here.add_array("key_a", ARRAY, 600, 1.0)
    here.sync()
    there.sync()
    with pytest.raises(QuotaPassed, match="stores 600 bytes and would store 500 more; its quota is 1000"):
        there.begin("key_a", 500)

    here.remove_array("key_a", ARRAY)
    here.sync()
    there._looked_at = 0.0  # as it is a fifth of a second later

    there.add_job("key_a", "job_1", 500, [])
    assert there.used("key_a") == 500


def test_what_a_killed_process_noted_keeps_an_array_from_deletion(opened: Open, tmp_path: Path) -> None:
    usage = opened()
    usage.add_array("key_a", ARRAY, 100, 1.0)
    usage.add_array("key_a", OTHER, 100, 1.0)
    assert usage.unread("key_a", ARRAY)
    program = (
        "import os, sys; from pathlib import Path; from warpdesk_server.workers.store.usage import *\n"
        f"usage = Usage(Path(sys.argv[1]), Quota(1000, 1000)); usage.add_job('key_a', 'job_1', 10, ['{ARRAY}'])\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "usage")], timeout=60)
    assert killed.returncode == -signal.SIGKILL

    assert (usage.unread("key_a", ARRAY), usage.unread("key_a", OTHER)) == (False, True)
    for file in (tmp_path / "usage").glob("*.jobs"):
        os.utime(file, (1.0, 1.0))  # long ago
    usage.recount({("key_a", ARRAY): (100, 1.0), ("key_a", OTHER): (100, 1.0)}, {}, 1e10)
    assert not list((tmp_path / "usage").glob("*.jobs"))
    assert (usage.unread("key_a", ARRAY), usage.used("key_a")) == (False, 210)
    usage.end_jobs({"job_1": 0})
    assert usage.unread("key_a", ARRAY)


def test_arrays_are_told_newest_first_and_each_once(opened: Open) -> None:
    usage = opened()
    made = [(float(number // 2), f"blake3:{number:064x}") for number in range(7)]  # two in a second
    for created_at, array_id in made:
        usage.add_array("key_a", array_id, 1, created_at)
    usage.add_array("key_b", OTHER, 1, 9.0)
    usage.sync()

    first = usage.arrays("key_a", 3)

    assert first + usage.arrays("key_a", 10, first[-1]) == made[::-1]


def test_a_damaged_table_is_made_again_and_counts_what_is_there(opened: Open, tmp_path: Path) -> None:
    usage = opened()
    usage.add_array("key_a", ARRAY, 100, 1.0)
    usage.close()
    (tmp_path / "usage" / "table.db").write_bytes(b"no table" * 1000)
    with pytest.raises(StoreFull, match="cannot be noted"):
        usage.sync()

    usage.recount({("key_a", ARRAY): (100, 1.0)}, {"job_1": 300, "job_2": 50}, 1e10, {"job_1": "key_a"}.get)

    assert usage.used("key_a") == 400
    usage.recount({("key_a", ARRAY): (100, 1.0)}, {"job_1": 200}, 1e10)
    assert usage.used("key_a") == 300
    assert not usage.unread("key_a", ARRAY)  # nobody knows which jobs were noted


def test_what_cannot_be_written_is_refused_or_kept_until_it_can(opened: Open) -> None:
    usage = opened()
    usage.sync()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(StoreFull, match="What is stored cannot be noted"):
            usage.add_job("key_a", "job_1", 100, [ARRAY])
        usage.add_array("key_a", ARRAY, 100, 1.0)
        with pytest.raises(StoreFull, match="cannot be noted"):
            usage.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    usage.sync()

    assert usage.used("key_a") == 100
    assert usage.arrays("key_a", 10) == [(1.0, ARRAY)]


def test_a_result_is_counted_by_its_files_and_no_more_when_they_are_gone(opened: Open) -> None:
    usage = opened()
    usage.add_job("key_a", "job_1", 500, [])
    usage.sync()
    usage.end_jobs({"job_1": None})
    assert usage.used("key_a") == 500

    usage.recount({}, {"job_1": 300}, 1e10)
    assert usage.used("key_a") == 300
    usage.recount({}, {}, 1e10)
    assert usage.used("key_a") == 0


def test_a_job_that_is_noted_after_the_end_is_there_at_the_next_start(opened: Open) -> None:
    late = opened()
    late.add_array("key_a", ARRAY, 100, time.time() + 1)
    assert late.unread("key_a", ARRAY)
    late.close()
    late.add_job("key_a", "job_1", 500, [ARRAY])
    assert late._journal is None  # nobody is left who would close the file
    assert not opened().unread("key_a", ARRAY)
