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

from warpdesk import processes, redis_server
from warpdesk.redis_server import RedisServer, RedisUnavailable
from workers.settings import Durability


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
        "from warpdesk.redis_server import RedisServer\n"
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


def test_a_system_server_is_preferred_to_the_bundled_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    system = tmp_path / "valkey-server"
    system.write_text("#!/bin/sh\n")
    system.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis_server.find_binary() == system


def test_a_server_that_cannot_start_says_what_its_log_says(home: Path) -> None:
    folder = home / "redis"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof").write_bytes(b"this is no command file")
    (folder / "appendonlydir").write_text("a file where Redis 7 wants its directory")
    with pytest.raises(RedisUnavailable, match=r"ended at once; the end of .*redis.log says"):
        RedisServer(home).start()
