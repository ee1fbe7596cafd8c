"""A Redis with the configuration of `deploy/redis`: its users, its TLS, and certificates made for the occasion."""

import datetime as dt
import hashlib
import ipaddress
import os
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.conftest import ROOT, free_port
from tests.link import Link
from warpdesk_server.service.redis_server import find_binary

DEPLOY = ROOT / "deploy" / "redis"
UNUSABLE = "#" + "0" * 64  # in users.acl where a password's digest belongs


@dataclass
class Secured:
    host: str
    port: int  # with TLS
    plain_port: int | None  # of a server that has no TLS of its own, behind a port that has
    ca: Path
    folder: Path
    binary: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, self.folder / "redis.conf"], stdout=log, stderr=log, env={**os.environ, "LC_ALL": "C"}
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.client("operator") as operator:
                    operator.ping()
                    operator.acl_log_reset()
                break
            except redis.ConnectionError:
                assert self.process.poll() is None, (self.folder / "redis.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def url(self, user: str) -> str:
        return f"rediss://{user}:{password(user)}@{self.host}:{self.port}/0?ssl_ca_certs={quote(str(self.ca))}"

    def client(self, user: str) -> redis.Redis:
        return redis.Redis.from_url(self.url(user), socket_timeout=10)

    def denied(self) -> list[str]:
        """What users were refused so far, and forget it. That a library may not introduce itself is left out, and that
        RQ may not look for its own address among all connections."""
        with self.client("operator") as operator:
            entries = operator.acl_log()
            operator.acl_log_reset()
        denials = [f"{entry['username']}: {entry['reason']} {entry['object']}" for entry in entries]
        return [line for line in denials if ": command client" not in line]


def password(user: str) -> str:
    return f"the password of {user}".replace(" ", "-")


@contextmanager
def secured_redis(folder: Path, host: str = "127.0.0.1", binary: Path | None = None) -> Iterator[Secured]:
    """Start it, with TLS of its own where the binary has any, else behind a port that ends TLS."""
    binary = binary or find_binary()
    tls = folder / "tls"
    tls.mkdir()
    certificates(tls, host)
    (folder / "data").mkdir()
    users = (DEPLOY / "users.acl").read_text()
    for user in ("operator", "api", "worker", "monitor"):
        digest = hashlib.sha256(password(user).encode()).hexdigest()
        users = users.replace(f"user {user} on {UNUSABLE}", f"user {user} on #{digest}")
    (folder / "users.acl").write_text(users)
    own_tls, port = has_tls(binary), free_port()
    config = (DEPLOY / "redis.conf").read_text()
    config = config.replace("/etc/redis", str(folder)).replace("/var/lib/redis", str(folder / "data"))
    config = re.sub(r"(?m)^bind .*$", f"bind {host}", config)
    if own_tls:
        config = config.replace("tls-port 6379", f"tls-port {port}")
    else:
        config = re.sub(r"(?m)^tls-.*\n", "", config).replace("\nport 0\n", f"\nport {port}\n")
    (folder / "redis.conf").write_text(config)
    with ExitStack() as cleanup:
        if own_tls:
            made = Secured(host, port, None, tls / "ca.crt", folder, binary)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "redis.crt", tls / "redis.key")
            front = cleanup.enter_context(Link(host, port, context, at=host))
            made = Secured(host, front.port, port, tls / "ca.crt", folder, binary)
        cleanup.callback(made.kill)
        made.start()
        yield made


def has_tls(binary: Path) -> bool:
    """Whether it knows the directive: it is given another one that none knows, and says which it does not."""
    result = subprocess.run(
        [binary, "--tls-port", "0", "--port", "0", "--no-such-directive", "0"],
        capture_output=True, text=True, check=False, timeout=20, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    return ">>> 'tls-port" not in result.stdout + result.stderr


def certificates(folder: Path, host: str, authority: str = "Warpdesk test CA") -> None:
    """ca.crt, redis.crt and redis.key, as README.md of `deploy/redis` has openssl make them."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]) for common in (authority, "redis"))
    now = dt.datetime.now(dt.UTC)

    def begin(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    usage = x509.KeyUsage(*(False,) * 5, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)
    ca = begin(ca_name, ca_key.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    ca = ca.add_extension(usage, critical=True)
    server = begin(name, key.public_key())
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    server = server.add_extension(alternative, critical=False)
    (folder / "ca.crt").write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "redis.crt").write_bytes(server.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "redis.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
