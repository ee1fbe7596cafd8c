"""The proxy does to a connection what it says: what is lost was executed, what is cut ends, what is silent waits."""

import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chaos.proxy import Commands, Proxy, Thief, scripts_of
from warpdesk_server.workers.queue import scripts


class EveryOther:
    """Takes each second reply of SET."""

    def __init__(self) -> None:
        self.sets = 0

    def takes(self, command: list[bytes]) -> bool:
        self.sets += command[0].upper() == b"SET"
        return command[0].upper() == b"SET" and self.sets % 2 == 0


@pytest.fixture
def behind(redis_url: str) -> Path:
    return Path(unquote(urlsplit(redis_url).path))


def client(proxy: Proxy, timeout: float = 5.0) -> redis.Redis:
    return redis.Redis.from_url(proxy.url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def test_commands_are_found_however_their_bytes_arrive() -> None:
    sent = b"*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$6\r\n1\r\n2\r\n\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n"
    whole = [[b"PING"], [b"SET", b"a", b"1\r\n2\r\n"], [b"GET", b"a"]]
    assert list(Commands().feed(sent)) == whole
    for size in range(1, len(sent)):
        commands = Commands()
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        assert [command for piece in pieces for command in commands.feed(piece)] == whole


def test_an_open_proxy_passes_everything(behind: Path) -> None:
    with Proxy(behind) as proxy, client(proxy) as connection:
        connection.set("large", bytes(5_000_000))
        assert connection.strlen("large") == 5_000_000
        assert connection.get("large") == bytes(5_000_000)


def test_a_command_whose_reply_is_lost_was_executed(behind: Path) -> None:
    with Proxy(behind, EveryOther()) as proxy, client(proxy) as connection:  # type: ignore[arg-type]
        connection.set("a", 1)
        with pytest.raises(redis.ConnectionError):
            connection.set("b", 2)
        assert connection.mget("a", "b") == [b"1", b"2"]


def test_every_kind_of_command_loses_replies_and_scripts_have_their_names(behind: Path) -> None:
    thief = Thief(seed=1, names={"e0e1f9fabfc9d4800c877a703b823ac0578ff8db": "ONE"}, every=4)
    lost = 0
    with Proxy(behind, thief) as proxy, client(proxy) as connection:
        for number in range(40):
            for command in (("EVAL", "return 1", 0), ("SET", "number", number), ("GET", "number")):
                try:
                    connection.execute_command(*command)
                except redis.ConnectionError:
                    lost += 1
    assert min(thief.taken[name] for name in ("ONE", "SET", "GET")) >= 5
    assert lost == sum(thief.taken[name] for name in ("ONE", "SET", "GET"))


def test_the_scripts_of_the_queue_are_known_by_name() -> None:
    assert {"ENQUEUE", "RENEW", "FINISH", "CANCEL"} <= set(scripts_of(scripts).values())


def test_what_is_cut_ends_and_nothing_begins_until_it_is_opened(behind: Path) -> None:
    with Proxy(behind) as proxy, client(proxy) as connection:
        connection.set("a", 1)
        proxy.cut()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                connection.get("a")
        proxy.open()
        assert connection.get("a") == b"1"


def test_what_is_silent_arrives_late_or_never(behind: Path, redis_url: str) -> None:
    with Proxy(behind) as proxy, client(proxy, 0.3) as impatient, redis.Redis.from_url(redis_url) as direct:
        assert impatient.ping()
        proxy.silence()
        with pytest.raises(redis.TimeoutError):
            impatient.set("a", 1)
        proxy.open()
        assert impatient.set("b", 2)
        assert direct.mget("a", "b") == [None, b"2"]


def test_a_slow_proxy_keeps_the_order(behind: Path) -> None:
    with Proxy(behind) as proxy, client(proxy) as connection:
        proxy.slow(0.02)
        began = time.monotonic()
        connection.set("a", 1)
        assert connection.get("a") == b"1"
        assert time.monotonic() - began >= 0.08
