"""`warpdesk health`: one look, one sentence, 0 or 1, as a container's health check takes it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.app.conftest import live
from tests.conftest import Service, free_port, wait_until_ready
from warpdesk.cli.main import main
from warpdesk_server.service import health, redis_server
from warpdesk_server.workers.queue.jobs import JobQueue, connect
from warpdesk_server.workers.queue.reports import WorkerReport


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WARPDESK_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who stays silent is waited for longer than this."""
    monkeypatch.setattr(health, "PATIENCE", 0.2)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a program that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.timeout(500)
def test_a_service_and_its_worker_are_alive_and_ready(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until_ready(service)
    assert main(["health", "--url", service.url]) == 0
    assert capsys.readouterr().out == f"{service.url}/livez answers 200, ok\n"
    monkeypatch.setenv("WARPDESK_URL", service.url)
    assert main(["health", "--ready"]) == 0
    assert capsys.readouterr().out.startswith(f"{service.url}/readyz answers 200, ")
    monkeypatch.setenv("WARPDESK_REDIS_URL", redis_server.url(service.home))
    assert main(["health", "--worker"]) == 0
    assert capsys.readouterr().out.startswith(f"on the host {socket.gethostname()}: {socket.gethostname()}-")


def test_an_api_without_workers_is_alive_and_not_ready(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with live(tmp_path, redis_url) as api:
        assert main(["health", "--url", api.url]) == 0
        assert main(["health", "--url", f"{api.url}/", "--ready"]) == 1
    message = capsys.readouterr().err
    assert message == f"warpdesk: {api.url}/readyz answers 503, unavailable; None of 0 live workers is ready\n"


def test_a_worker_of_another_host_is_not_this_hosts(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_REDIS_URL", redis_url)

    def report(host: str) -> None:
        worker_report = WorkerReport(
            name=f"{host}-7", host=host, pid=7, child_pid=8, state="busy", device=None, started_at=0.0, reported_at=0.0
        )
        with connect(redis_url) as connection:
            JobQueue(connection).report(worker_report, 15.0, f"{host} boot ns|7|1")

    report("elsewhere")
    assert main(["health", "--worker"]) == 1
    assert "no worker of the host" in capsys.readouterr().err
    report(socket.gethostname())
    assert main(["health", "--worker"]) == 0
    assert capsys.readouterr().out.endswith("-7 is busy\n")
    with redis.Redis.from_url(redis_url) as connection:
        connection.delete(f"warpdesk:worker:{socket.gethostname()}-7")  # as its time to live does
    assert main(["health", "--worker"]) == 1


@pytest.mark.usefixtures("quick")
def test_whoever_does_not_answer_is_not_waited_for(
    silent: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for port in (silent, free_port()):
        assert main(["health", "--url", f"http://127.0.0.1:{port}"]) == 1
        assert f"http://127.0.0.1:{port}/livez does not answer: " in capsys.readouterr().err
        monkeypatch.setenv("WARPDESK_REDIS_URL", f"redis://worker:pass-word@127.0.0.1:{port}/0")
        assert main(["health", "--worker"]) == 1
        message = capsys.readouterr().err
        assert "Redis does not answer: " in message
        assert "pass-word" not in message


def test_what_cannot_be_asked_is_a_mistake_of_whoever_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARPDESK_REDIS_URL", "redis:/pass-word@host")
    assert main(["health", "--worker"]) == 2
    assert "pass-word" not in capsys.readouterr().err
    assert main(["health", "--url", "127.0.0.1:8000"]) == 2
    assert main(["health", "--worker", "--ready"]) == 2


def test_another_program_at_the_port_is_not_taken_for_a_service(
    tmp_path: Path, redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE", 60.0)  # the answer is judged here, not its time
    with live(tmp_path, redis_url) as api:
        for path in ("/docs#", "/v1/nowhere"):  # a page, and a problem in JSON
            assert main(["health", "--url", f"{api.url}{path}"]) == 1
            assert "and not as Warpdesk does" in capsys.readouterr().err
