"""The embedded Redis: found, private, durable, alone in its home, and gone with the process that started it."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.redis_servers import NAMES, newest, server
from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor.broker import broker
from warpdesk_server.service import processes, redis_server
from warpdesk_server.service.redis_server import RedisServer, RedisUnavailable
from warpdesk_server.workers.settings import Durability


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="warpdesk-test-"))
    yield folder / "home"
    shutil.rmtree(folder)


def connect(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url, socket_timeout=5)


def test_it_listens_on_a_unix_socket_only_and_in_a_directory_nobody_else_can_enter(home: Path) -> None:
    with RedisServer(home) as server, connect(server.url) as connection:
        assert server.url.startswith("unix:///")
        assert connection.config_get("port")["port"] == "0"
        assert stat.S_IMODE((home / "redis").stat().st_mode) == 0o700
        assert connection.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert connection.config_get("save")["save"] == ""
        assert connection.config_get("appendonly")["appendonly"] == "yes"


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_it_forces_its_file_to_the_disk_as_the_durability_says(home: Path, durability: Durability) -> None:
    with RedisServer(home, durability) as server, connect(server.url) as connection:
        assert connection.config_get("appendfsync")["appendfsync"] == durability


def test_a_restart_keeps_what_was_written(home: Path) -> None:
    with RedisServer(home) as server, connect(server.url) as connection:
        connection.set("written", "before the restart")
    with RedisServer(home) as server, connect(server.url) as connection:
        assert connection.get("written") == b"before the restart"


def test_a_killed_server_starts_again_beside_its_stale_socket_and_keeps_what_it_acknowledged(home: Path) -> None:
    with RedisServer(home) as server:
        with connect(server.url) as connection:
            connection.set("written", "before the kill")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        while server.running:
            time.sleep(0.01)
        assert redis_server.socket_path(home).exists()
        server.start()
        with connect(server.url) as connection:
            assert connection.get("written") == b"before the kill"


def test_a_half_written_last_command_does_not_stop_the_next_start(home: Path) -> None:
    with RedisServer(home) as server, connect(server.url) as connection:
        connection.set("whole", "yes")
    # Redis 7 and Valkey keep their file in a directory of parts, Redis 6 in one file.
    [*parts] = (home / "redis").rglob("*.incr.aof") or []
    target = parts[0] if parts else home / "redis" / "appendonly.aof"
    with target.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$4\r\nha")
    with RedisServer(home) as server, connect(server.url) as connection:
        assert connection.get("whole") == b"yes"


def test_a_second_server_in_the_same_home_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_server, "LOCK_PATIENCE", 0.1)
    with RedisServer(home), pytest.raises(RedisUnavailable, match=f"in use by another service .process {os.getpid()}."):
        RedisServer(home).start()


def test_stopping_leaves_no_process_and_no_socket(home: Path) -> None:
    server = RedisServer(home)
    server.start()
    pid = server.pid
    assert pid is not None
    assert processes.alive(pid)
    server.stop()
    assert not processes.alive(pid)
    assert not redis_server.socket_path(home).exists()


def test_it_dies_with_a_killed_parent_and_frees_the_home(home: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from warpdesk_server.service.redis_server import RedisServer\n"
        "server = RedisServer(pathlib.Path(sys.argv[1]))\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(home)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as output:
        pid = int(output.readline())
    parent.kill()
    parent.wait()
    with RedisServer(home) as server:  # waits for the orphan's lock
        assert server.running
    assert not processes.alive(pid)


def test_a_home_too_deep_for_a_unix_socket_gets_one_in_the_temporary_directory(home: Path) -> None:
    deep = home / ("d" * 60) / ("e" * 60)
    path = redis_server.socket_path(deep)
    assert len(os.fsencode(path)) <= redis_server.SOCKET_PATH_LIMIT
    with RedisServer(deep) as server, connect(server.url) as connection:
        assert connection.ping()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()


def test_a_planted_link_in_the_temporary_directory_is_refused(home: Path, tmp_path: Path) -> None:
    deep = home / ("d" * 60) / ("e" * 60)
    planted = redis_server.socket_path(deep).parent
    planted.symlink_to(tmp_path)
    try:
        with pytest.raises(RedisUnavailable, match="is not a directory of user"):
            RedisServer(deep).start()
    finally:
        planted.unlink()


def test_without_a_server_the_error_names_the_package_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisUnavailable, match=r"apt-get install redis-server.*WARPDESK_REDIS_URL"):
        redis_server.find_binary()


def program(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o700)
    return path


def test_a_system_server_is_preferred_to_the_bundled_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = program(tmp_path / "valkey-server", "Valkey server v=7.2.1 sha=0 malloc=libc bits=64")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_server.find_binary() == system


def test_a_system_server_that_is_older_than_the_bundled_one_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundled = program(tmp_path / "bundled", "Redis server v=6.2.14 sha=0 malloc=libc bits=64")
    program(tmp_path / "redis-server", "Redis server v=6.0.16 sha=0 malloc=libc bits=64")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server, "bundled", lambda: bundled)
    assert redis_server.find_binary() == bundled


def test_the_server_that_is_named_is_taken_and_must_be_a_program(home: Path, tmp_path: Path) -> None:
    chosen = server("bundled")
    with RedisServer(home, binary=chosen) as running, connect(running.url) as connection:
        assert connection.info("server")["redis_version"].startswith("6.2.")
    with pytest.raises(RedisUnavailable, match=r"WARPDESK_REDIS_SERVER names .*, which is no program"):
        RedisServer(home, binary=tmp_path / "nothing").start()


def test_a_server_that_would_not_see_the_jobs_of_a_newer_one_is_refused(home: Path) -> None:
    old = server("bundled")
    if redis_server.version(newest()) < redis_server.FIXED_SINCE:
        pytest.skip("no Redis of 7 or later is here")
    with RedisServer(home, binary=newest()) as running, connect(running.url) as connection:
        connection.set("written", "by the newer one")
    with pytest.raises(RedisUnavailable, match="written by Redis 7 or later"):
        RedisServer(home, binary=old).start()
    with RedisServer(home, binary=newest()) as running, connect(running.url) as connection:
        assert connection.get("written") == b"by the newer one"


def test_a_newer_server_reads_what_an_older_one_wrote(home: Path) -> None:
    with RedisServer(home, binary=server("bundled")) as running, connect(running.url) as connection:
        connection.set("written", "by the older one")
    with RedisServer(home, binary=newest()) as running, connect(running.url) as connection:
        assert connection.get("written") == b"by the older one"


def test_a_server_that_cannot_start_says_what_its_log_says(home: Path) -> None:
    folder = home / "redis"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof").write_bytes(b"this is no command file")
    (folder / "appendonlydir").write_text("a file where Redis 7 wants its directory")
    with pytest.raises(RedisUnavailable, match=r"ended at once; the end of .*redis.log says"):
        RedisServer(home).start()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runs", [True, False])
def test_the_doctor_warns_of_a_redis_that_gets_no_fixes_and_of_no_other(home: Path, name: str, runs: bool) -> None:
    binary = server(name)
    if runs:
        with RedisServer(home, binary=binary) as running:
            check = broker(Settings(home=home, redis_url=running.url))
    else:
        check = broker(Settings(home=home, redis_server=binary))
    if redis_server.version(binary) >= (7,):
        assert (check.status, check.remedy) == ("ok", None)
    else:
        assert (check.status, "gets no security fixes" in check.found) == ("warning", True)
        assert "apt-get install redis-server (7 or later)" in str(check.remedy)
