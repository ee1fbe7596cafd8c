"""Three Redis servers with three Sentinels, each pair a machine of its own as far as the network goes.

Everyone reaches a server and a Sentinel through a port before it (`Proxy`), which is what they announce, and machine
`n` speaks from the address 127.0.0.1n. So machines can lose each other while clients still reach all of them.

Sentinel's times are a tenth or so of its defaults, in proportion: it takes a primary for down after two rounds of
questions for its replicas' offsets, and so promotes by offsets that are newer than the primary's end.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import redis
from redis.exceptions import RedisError

from tests.chaos.proxy import Proxy
from tests.conftest import free_port
from tests.waiting import wait_until
from warpdesk_server.service.processes import spawn, stop

NAME = "main"
DOWN_AFTER = 1200  # milliseconds
PERIODS = {"INFO-PERIOD": 500, "PUBLISH-PERIOD": 300}  # milliseconds
LAG = 2  # seconds without word of a replica after which a primary takes no write
PATIENCE = 60.0


@dataclass
class Machine:
    """One server and one Sentinel, the ports they listen on, and the ports before these."""

    number: int
    folder: Path
    server_port: int = field(default_factory=free_port)
    sentinel_port: int = field(default_factory=free_port)
    server: "subprocess.Popen[bytes] | None" = None
    sentinel: "subprocess.Popen[bytes] | None" = None
    gates: tuple[Proxy, ...] = ()

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.gates = Proxy(("127.0.0.1", self.server_port)), Proxy(("127.0.0.1", self.sentinel_port))

    @property
    def address(self) -> str:
        return f"127.0.0.1{self.number + 1}"

    def client(self) -> redis.Redis:
        """A client of the server itself, whatever its network does."""
        return redis.Redis(port=self.server_port, socket_timeout=2)


class Cluster:
    """Use it from one thread: processes die with the thread that started them."""

    def __init__(self, folder: Path, binary: Path) -> None:
        self._binary = binary
        self.machines = [Machine(number, folder / f"machine-{number}") for number in range(3)]
        self._cleanup = ExitStack()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{machine.gates[1].port}" for machine in self.machines)
        return f"redis+sentinel://{hosts}/{NAME}/0"

    def start(self) -> None:
        for machine in self.machines:
            for gate in machine.gates:
                gate.start()
                self._cleanup.callback(gate.stop)
        for machine in self.machines:
            self.start_server(machine, first=self.machines[0])
        for machine in self.machines:
            self._start_sentinel(machine)
        wait_until(self.whole, "the replicas or the Sentinels did not find each other", PATIENCE, unknown=(RedisError,))

    def stop(self) -> None:
        for machine in self.machines:
            for process in (machine.sentinel, machine.server):
                if process is not None:
                    stop(process)
        self._cleanup.close()

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start_server(self, machine: Machine, first: Machine | None = None) -> None:
        """Start a server, as the replica of `first`. What it was before its end is found by the Sentinels."""
        command: list[str | Path] = [self._binary, "--port", str(machine.server_port), "--dir", machine.folder]
        command += ["--bind", "127.0.0.1", "--bind-source-addr", machine.address, "--protected-mode", "no"]
        command += ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(machine.gates[0].port)]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction"]
        command += ["--min-replicas-to-write", "1", "--min-replicas-max-lag", str(LAG)]
        command += ["--repl-timeout", "3", "--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0"]
        command += ["--hz", "100", "--lua-time-limit", "1000"]
        if first is not None and first is not machine:
            command += ["--replicaof", "127.0.0.1", str(first.gates[0].port)]
        machine.server = self._spawned(machine, command, "server")

    def _start_sentinel(self, machine: Machine) -> None:
        configuration = machine.folder / "sentinel.conf"
        configuration.write_text(
            f"port {machine.sentinel_port}\nbind 127.0.0.1\nbind-source-addr {machine.address}\nprotected-mode no\n"
            f"dir {machine.folder}\nsentinel announce-ip 127.0.0.1\n"
            f"sentinel announce-port {machine.gates[1].port}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.machines[0].gates[0].port} 2\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER}\nsentinel failover-timeout {NAME} 5000\n"
            f"sentinel parallel-syncs {NAME} 2\n"
        )
        machine.sentinel = self._spawned(machine, [self._binary, configuration, "--sentinel"], "sentinel")
        with redis.Redis(port=machine.sentinel_port, socket_timeout=2) as sentinel:
            wait_until(sentinel.ping, "a Sentinel does not answer", PATIENCE, unknown=(RedisError,))
            for name, milliseconds in PERIODS.items():
                sentinel.execute_command("SENTINEL", "DEBUG", name, milliseconds)

    def _spawned(self, machine: Machine, command: Sequence[str | Path], name: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "LC_ALL": "C"}
        return spawn(list(command), env=environment, cwd=machine.folder, log=machine.folder / f"{name}.log")

    # What is seen of it.

    def states(self) -> Iterator[dict[str, object]]:
        """What each Sentinel says of the primary."""
        for machine in self.machines:
            with redis.Redis(port=machine.sentinel_port, socket_timeout=2) as sentinel:
                yield sentinel.sentinel_masters()[NAME]

    def whole(self) -> bool:
        """Whether all Sentinels agree on a primary that has two replicas, and know each other."""
        states = list(self.states())
        found = {state["port"] for state in states}
        complete = all((state["num-slaves"], state["num-other-sentinels"]) == (2, 2) for state in states)
        down = any(state["is_sdown"] or state["is_odown"] for state in states)
        if len(found) != 1 or not complete or down:
            return False
        with self._at(found.pop()).client() as primary:
            info = primary.info("replication")
        replicas = [info.get(f"slave{number}") for number in range(2)]
        return info["role"] == "master" and all(replica and replica["state"] == "online" for replica in replicas)

    def primary(self) -> Machine:
        """The machine of the primary, by the Sentinel of the latest failover."""
        return self._at(max(self.states(), key=lambda state: int(str(state["config-epoch"])))["port"])

    def _at(self, port: object) -> Machine:
        return next(machine for machine in self.machines if machine.gates[0].port == port)

    # What is done to it.

    def kill(self, machine: Machine) -> None:
        assert machine.server is not None
        os.kill(machine.server.pid, signal.SIGKILL)
        machine.server.wait()

    @contextmanager
    def split(self, machine: Machine) -> Iterator[None]:
        """The other two machines and this one hear nothing of each other; clients reach all three."""
        others = [other for other in self.machines if other is not machine]
        for gate in machine.gates:
            gate.silence(*(other.address for other in others))
        for other in others:
            for gate in other.gates:
                gate.silence(machine.address)
        try:
            yield
        finally:
            for each in self.machines:
                for gate in each.gates:
                    gate.open()
