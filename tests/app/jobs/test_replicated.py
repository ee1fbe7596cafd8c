"""With WARPDESK_DURABILITY=replicated the API tells nothing that a failover could take back."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from redis.exceptions import RedisError

from tests.app.arrays.test_uploads import NPY, npy
from tests.app.conftest import Live, live, unlike
from tests.chaos.cluster import Cluster
from tests.redis_servers import server
from tests.waiting import wait_until
from warpdesk.models import State


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One whose primary takes changes without replicas, so that the confirmation alone decides."""
    with Cluster(tmp_path_factory.mktemp("cluster"), server("valkey")) as running:
        for machine in running.machines:
            with machine.client() as connection:
                connection.config_set("min-replicas-to-write", 0)
        yield running


@pytest.fixture(scope="module")
def api(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("home"), cluster.url, durability="replicated", redis_patience=1.0) as running:
        yield running


@contextmanager
def replicas_stand_still(cluster: Cluster) -> Iterator[None]:
    """Connected as before, and confirming nothing. The primary minds that after some seconds only."""
    primary = cluster.primary()
    processes = [machine.server.pid for machine in cluster.machines if machine is not primary and machine.server]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)
        wait_until(cluster.whole, unknown=(RedisError,))


def submitted(api: Live) -> str:
    answer = api.http.post("/v1/jobs", json=unlike())
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def problem(api: Live, path: str) -> tuple[int, str, bool]:
    answer = api.http.get(path)
    return answer.status_code, answer.json()["code"], answer.json()["retryable"]


def test_an_accepted_job_is_in_a_replica_and_the_answer_says_so(api: Live, cluster: Cluster) -> None:
    answer = api.http.post("/v1/jobs", json=unlike())
    name = f"warpdesk:job:{answer.json()['id']}"
    replicas = [machine.client() for machine in cluster.machines if machine is not cluster.primary()]

    assert (answer.status_code, answer.headers["Warpdesk-Durability"]) == (202, "replicated")
    assert any(replica.exists(name) for replica in replicas)
    for replica in replicas:
        replica.close()


def test_an_array_is_on_the_disk_of_the_store_alone_and_the_answer_says_so(api: Live) -> None:
    array = api.http.put("/v1/arrays", content=npy(np.arange(3.0)), headers=NPY)

    assert (array.status_code, array.headers["Warpdesk-Durability"]) == (201, "always")


def test_a_job_that_is_not_confirmed_is_a_503_and_its_key_makes_it_one_job(api: Live, cluster: Cluster) -> None:
    headers, submission = {"Idempotency-Key": "unconfirmed"}, unlike()
    with replicas_stand_still(cluster):
        first = api.http.post("/v1/jobs", json=submission, headers=headers)
        again = api.http.post("/v1/jobs", json=submission, headers=headers)
        before = api.http.get("/readyz").json()

    document = first.json()
    assert (first.status_code, document["code"], document["retryable"]) == (503, "not-replicated", True)
    assert "0 of 1 replicas" in document["detail"]
    assert first.headers["Retry-After"] == "1"
    assert again.json()["code"] in ("not-replicated", "queue-unavailable")
    assert before["status"] == "unavailable"

    def accepted() -> Any:
        answer = api.http.post("/v1/jobs", json=submission, headers=headers)
        return answer if answer.status_code == 202 else None

    taken = wait_until(accepted)
    assert taken.headers.get("Idempotent-Replayed") == "true"
    listed = api.http.get("/v1/jobs?limit=200").json()["jobs"]
    assert [job["id"] for job in listed].count(taken.json()["id"]) == 1


@pytest.mark.parametrize("path", ["/v1/jobs/{}", "/v1/jobs/{}/result", "/v1/jobs/{}/events", "/v1/jobs?limit=5"])
def test_an_end_that_is_not_confirmed_is_shown_to_nobody(api: Live, cluster: Cluster, path: str) -> None:
    job = submitted(api)
    with replicas_stand_still(cluster):
        assert api.queue.cancel(job) is State.CANCELED  # by a client that waits for no replica

        assert problem(api, path.format(job)) == (503, "not-replicated", True)

    wait_until(lambda: api.http.get(f"/v1/jobs/{job}").json()["status"] == "canceled")


def test_a_wait_ends_with_the_job_as_it_was_while_its_end_is_not_confirmed(api: Live, cluster: Cluster) -> None:
    job = submitted(api)
    with replicas_stand_still(cluster):
        api.queue.cancel(job)

        assert api.http.get(f"/v1/jobs/{job}", headers={"Prefer": "wait=1"}).status_code == 503

    wait_until(lambda: api.http.get(f"/v1/jobs/{job}").json()["status"] == "canceled")


def test_a_cancel_that_is_not_confirmed_is_a_503(api: Live, cluster: Cluster) -> None:
    job = submitted(api)
    with replicas_stand_still(cluster):
        assert api.http.post(f"/v1/jobs/{job}/cancel").json()["code"] == "not-replicated"

    wait_until(lambda: api.http.post(f"/v1/jobs/{job}/cancel").json()["status"] == "canceled")


def test_an_event_stream_ends_with_the_jobs_end_after_a_failover(api: Live, cluster: Cluster) -> None:
    job = submitted(api)
    old = cluster.primary()
    with api.http.stream("GET", f"/v1/jobs/{job}/events") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: queued"
        cluster.kill(old)
        wait_until(lambda: api.http.post(f"/v1/jobs/{job}/cancel").status_code == 200)

        assert next(line for line in lines if line.startswith("event: ")) == "event: canceled"
    cluster.start_server(old)
    wait_until(cluster.whole, unknown=(RedisError,))
