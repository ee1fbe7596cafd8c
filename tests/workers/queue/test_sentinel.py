"""A Redis behind Sentinels: what its URL may be, and that clients find the present primary, with passwords and TLS."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.chaos.cluster import Cluster
from tests.conftest import free_port
from tests.deploy.redis_of_deploy import certificates
from tests.redis_servers import server
from tests.waiting import wait_until
from warpdesk_server.service.processes import spawn, stop
from warpdesk_server.workers.parent.blocking_pop import BlockingPop
from warpdesk_server.workers.queue import scripts
from warpdesk_server.workers.queue.jobs import connect
from warpdesk_server.workers.queue.lua import evaluate
from warpdesk_server.workers.queue.sentinel import named, primary_url


@pytest.mark.parametrize(
    ("url", "sentinels", "primary", "of_a_server"),
    [
        ("redis+sentinel://a/main", (("a", 26379),), "main", "redis://h:1/0?"),
        ("redis+sentinel://a:1,b,[::1]:3/main/2", (("a", 1), ("b", 26379), ("::1", 3)), "main", "redis://h:1/2?"),
        ("rediss+sentinel://u:p%2F%40@a:1/m?ssl_ca_certs=/c", (("a", 1),), "m", "rediss://u:p%2F%40@h:1/0?ssl_ca_certs=%2Fc"),
        ("redis+sentinel://a/m?sentinel_password=s", (("a", 26379),), "m", "redis://h:1/0?"),
    ],
)  # fmt: skip
def test_a_url_names_sentinels_and_a_primary(
    url: str, sentinels: tuple[tuple[str, int], ...], primary: str, of_a_server: str
) -> None:
    found = named(url)

    assert found is not None
    assert (found.sentinels, found.primary, found.url("h", 1)) == (sentinels, primary, of_a_server)


def test_options_for_the_sentinels_are_theirs_alone() -> None:
    found = named("rediss+sentinel://u:p@a/m?ssl_ca_certs=/c&sentinel_username=v&sentinel_password=q%26")

    assert found is not None
    assert found.options == {"ssl_ca_certs": "/c", "username": "v", "password": "q&", "ssl": True}
    assert found.url("2001:db8::1", 6379) == "rediss://u:p@[2001:db8::1]:6379/0?ssl_ca_certs=%2Fc"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://a:1", "name-of-the-primary"),
        ("redis+sentinel:///main", "name-of-the-primary"),
        ("redis+sentinel://a,/main", "name-of-the-primary"),
        ("redis+sentinel://a/main/x", "invalid literal"),
        ("redis+sentinel://a:x/main", "Port could not"),
    ],
)
def test_a_url_that_names_no_sentinel_or_primary_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        named(url)


def test_the_url_of_one_server_is_its_own() -> None:
    assert named("redis://u:p@h:1/0") is None
    assert primary_url("redis://u:p@h:1/0") == "redis://u:p@h:1/0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), server("valkey")) as running:
        yield running


def patient(cluster: Cluster) -> redis.Redis:
    """A client that tries again as long as a failover may take."""
    return connect(cluster.url, Retry(ConstantBackoff(0.05), 400), 1.0)  # type: ignore[no-untyped-call]


def test_a_client_goes_on_at_the_new_primary_with_its_scripts(cluster: Cluster) -> None:
    old = cluster.primary()
    with patient(cluster) as client:
        assert evaluate(client, scripts.WAITING_BY_OWNER, "quick") == []
        client.set("kept", 1)
        client.wait(2, 5000)  # type: ignore[no-untyped-call]

        cluster.kill(old)

        assert client.get("kept") == b"1"
        assert evaluate(client, scripts.WAITING_BY_OWNER, "quick") == []
        assert cluster.primary() is not old
    cluster.start_server(old)
    wait_until(cluster.whole, unknown=(RedisError,))


def test_a_blocked_pop_is_heard_at_the_new_primary(cluster: Cluster) -> None:
    old = cluster.primary()
    with patient(cluster) as client:
        pop = BlockingPop(client, 1)
        assert pop.listen(["list"]) != []
        cluster.kill(old)
        client.lpush("list", "entry")

        def answer() -> tuple[str, bytes] | None:
            return pop.hear() if pop.listen(["list"]) else None

        assert wait_until(answer) == ("list", b"entry")
        pop.close()
    cluster.start_server(old)
    wait_until(cluster.whole, unknown=(RedisError,))


def test_the_sentinel_on_the_side_of_the_old_primary_is_not_believed(cluster: Cluster) -> None:
    old = cluster.primary()
    ports = [machine.gates[1].port for machine in sorted(cluster.machines, key=lambda machine: machine is not old)]
    url = f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/main/0"
    with cluster.split(old):
        wait_until(lambda: cluster.primary() is not old, unknown=(RedisError,))
        before = list(cluster.states())[old.number]

        wait_until(lambda: primary_url(url) == f"redis://127.0.0.1:{cluster.primary().gates[0].port}/0?")

        assert (before["port"], before["is_master"]) == (old.gates[0].port, True)
    wait_until(cluster.whole, unknown=(RedisError,))


def test_passwords_and_tls_are_for_servers_and_sentinels(tmp_path: Path) -> None:
    tls, port, sentinel_port = tmp_path / "tls", free_port(), free_port()
    tls.mkdir()
    certificates(tls, "127.0.0.1")
    secured = (
        f"port 0\nbind 127.0.0.1\ndir {tmp_path}\ntls-ca-cert-file {tls}/ca.crt\ntls-cert-file {tls}/redis.crt\n"
        f"tls-key-file {tls}/redis.key\ntls-auth-clients no\ntls-replication yes\n"
    )
    (tmp_path / "server.conf").write_text(f"{secured}tls-port {port}\nrequirepass of-the-server\n")
    (tmp_path / "sentinel.conf").write_text(
        f"{secured}tls-port {sentinel_port}\nrequirepass of-the-sentinel\n"
        f"sentinel monitor main 127.0.0.1 {port} 1\nsentinel auth-pass main of-the-server\n"
    )
    options = f"ssl_ca_certs={quote(str(tls / 'ca.crt'))}&sentinel_password=of-the-sentinel"
    url = f"rediss+sentinel://:of-the-server@127.0.0.1:{sentinel_port}/main/0?{options}"
    binary = server("valkey")
    processes = [
        spawn([binary, tmp_path / f"{name}.conf", *mode], cwd=tmp_path, log=tmp_path / f"{name}.log")
        for name, mode in (("server", ()), ("sentinel", ("--sentinel",)))
    ]
    try:
        with connect(url, timeout=2) as client:
            wait_until(client.ping, unknown=(RedisError,))

        with (
            connect(url.replace("of-the-server", "wrong"), timeout=2) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
        with pytest.raises(redis.ConnectionError, match="none of 1 Sentinels"):
            primary_url(url.replace("of-the-sentinel", "wrong"))
    finally:
        for process in processes:
            stop(process)
