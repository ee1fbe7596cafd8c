"""A service that is told to stop while a job runs: it says what it waits for, and a second signal ends that."""

from pathlib import Path

from redis import Redis

from tests.conftest import Service, serve
from tests.waiting import wait_until
from warpdesk.models import State
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.store.spool import SpoolStore

ENDLESS = 600.0  # seconds of the job, and of the worker's patience


def nap(service: Service, connection: Redis) -> JobQueue:
    """Have the service's worker run a job that does not end by itself, and return the queue."""
    queue = JobQueue(connection, SpoolStore(service.home / "store").mac_of)
    marker = service.home / "marker"
    queue.enqueue(
        JobRequest(
            id="job_00000001", owner="local", operation="nap", params={"seconds": ENDLESS, "marker": str(marker)},
            inputs={}, timeout=ENDLESS, result_ttl=600.0,
        )
    )  # fmt: skip
    wait_until(lambda: marker.exists() and marker.read_text(), "the job did not begin", 90)
    return queue


def test_it_says_what_it_waits_for_and_a_second_signal_gives_the_job_back(redis_url: str, tmp_path: Path) -> None:
    with (
        connect(redis_url) as connection,
        serve(
            tmp_path / "home",
            WARPDESK_REDIS_URL=redis_url,
            WARPDESK_OPERATIONS="tests.workers.operations:GATED",
            WARPDESK_DRAIN_SECONDS=str(ENDLESS),
        ) as service,
    ):
        queue = nap(service, connection)
        service.process.terminate()
        wait_until(lambda: "A second signal ends it at once" in service.log.read_text(), service.log.read_text, 60)
        running = queue.get("job_00000001")
        assert running is not None
        assert running.state is State.RUNNING
        assert "Stopping: waiting for the worker, for at most 60" in service.log.read_text()

        service.process.terminate()

        assert service.process.wait(60) == 0
        given_back = queue.get("job_00000001")
    assert given_back is not None
    assert (given_back.state, given_back.attempt, given_back.strikes) == (State.QUEUED, 1, 0)
