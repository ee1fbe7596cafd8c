"""A disk that is filled to its last byte under load, again and again: the whole service is back by itself each time,
and every job that was acknowledged ends with its right answer."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.checker import check
from tests.chaos.history import History
from tests.chaos.load import Load, clean_run
from tests.chaos.measure import shown
from tests.chaos.test_chaos import SAVE, SEED
from tests.chaos.workload import Request, Submission, Workload
from tests.conftest import Service, processes_of, serve, wait_until_ready
from tests.waiting import wait_until
from tests.warpdesk_server.test_full_disk import disk_of, fill
from warpdesk_server.benchmarks import report

TIMES = int(os.environ.get("CHAOS_DISKS", "20"))
BETWEEN = 50  # jobs that end before the disk is filled again
FULL = 3.0  # seconds for which it stays full after Redis has ended: starting Redis again fails meanwhile
PATIENCE = 300.0


def redis_process(service: Service) -> int | None:
    return next((pid for pid, command in processes_of(service.home).items() if "redis-server" in command), None)


def unready(service: Service) -> bool:
    try:
        return httpx.get(f"{service.url}/readyz", timeout=5).status_code == 503
    except httpx.TransportError:
        return False


def offered(request: Request) -> bool:
    return request.body["operation"] != "double"  # which is of the chaos tests alone


def submissions(workload: Workload) -> Iterator[Submission]:
    return (one for one in workload.submissions() if offered(one.request))


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_a_full_disk_costs_no_job_and_the_service_is_back_by_itself(tmp_path: Path) -> None:
    workload = Workload("full disk", SEED, 350)
    back: list[float] = []  # seconds from the moment in which there was room
    done: list[float] = []
    with (
        disk_of("2g", tmp_path) as disk,
        History(tmp_path / "history.jsonl") as history,
        serve(disk / "home") as service,
    ):
        clean = clean_run(service.url, history, [request for request in workload.requests if offered(request)])
        with Load(service.url, history, submissions(workload), 0, enough=lambda: len(done) >= TIMES) as load:
            for number in range(TIMES):
                settled = load.settled
                wait_until(lambda settled=settled: load.settled >= settled + BETWEEN, "no jobs end", PATIENCE)
                redis = redis_process(service)
                filler = fill(disk)
                history.add("fault", "disk", detail=f"full, the {number + 1}. time")
                wait_until(
                    lambda redis=redis: redis_process(service) != redis and unready(service),
                    "it minds no full disk",
                    PATIENCE,
                )
                time.sleep(FULL)
                filler.unlink()
                freed, settled = time.monotonic(), load.settled
                wait_until_ready(service, PATIENCE)
                back.append(time.monotonic() - freed)
                wait_until(lambda settled=settled: load.settled > settled, "no job ends", PATIENCE)
                done.append(time.monotonic() - freed)
            wait_until(lambda: load.done or load.errors, "jobs do not end", PATIENCE)
        load.audit()
        counts = Counter(entry.what for entry in history.entries())
        verdict = check(history.entries(), clean)
        facts = {
            "times the disk was full": len(back),
            "seconds it stayed full after Redis had ended": FULL,
            "times the service was back by itself": len(done),
            "acknowledged": verdict.acknowledged,
            "refused, to be sent again": counts["refused"],
            "requests without an answer": counts["unknown"],
            "lost": len(verdict.lost),
            "seen twice": len(verdict.duplicated),
            "changed": len(verdict.changed),
            "wrong": len(verdict.wrong),
            "unexpected": len(verdict.unexpected),
            **{f"seconds until {what}": figure for what, figure in shown({"it is ready": back, "a job is done": done})},
        }
        sys.stdout.write("".join(f"  {name}: {value}\n" for name, value in facts.items()))
        if SAVE:
            report.save("chaos_full-disk", [{"fact": name, "value": value} for name, value in facts.items()])
    assert load.errors == []
    assert verdict.right, str(verdict)
