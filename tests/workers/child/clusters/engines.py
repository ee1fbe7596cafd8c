"""Real clusters on this machine, each a head without places and two nodes with one: of Ray, and of Dask."""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, free_port
from tests.waiting import wait_until

PATIENCE = 90.0

_TOKEN = secrets.token_hex()


@dataclass(frozen=True)
class Engine:
    """A cluster that runs: its address, the folder of the gate of `gated`, and the process that is its head."""

    kind: str
    address: str
    gate: Path
    head: "subprocess.Popen[bytes]"

    def at_work(self) -> set[int]:
        """The processes that are each a node, of those that compute `gated`: a worker of Dask, or a raylet of Ray."""
        pairs = [map(int, path.name.split("-")) for path in self.gate.glob("*-*")]
        return {parent if self.kind == "ray" else own for parent, own in pairs}

    def shut_gate(self) -> None:
        for path in self.gate.iterdir():
            path.unlink()

    @property
    def open(self) -> bool:
        return (self.gate / "open").exists()

    def open_gate(self) -> None:
        (self.gate / "open").touch()


@contextmanager
def running(folder: Path, *command: str | Path, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in an environment with these variables, which has ended afterwards with all that it started."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARPDESK_")}
    own = {"PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "engine.log").open("ab") as log:
        process = subprocess.Popen(
            [Path(sys.executable).parent / command[0], *command[1:]],
            cwd=folder, env={**clean, **own, **variables}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def engine(kind: str, nanny: bool = False, **variables: str) -> Iterator[Engine]:
    """A cluster of `ray` or `dask` whose nodes have these variables; those of Dask are started again with a `nanny`."""
    # Ray's sockets are below its folder: their paths must be short.
    with tempfile.TemporaryDirectory(prefix="wd-", ignore_cleanup_errors=True) as made, ExitStack() as stack:
        folder = Path(made)
        (gate := folder / "gate").mkdir()
        variables = {
            "TEST_GATE": str(gate),
            "WARPDESK_HOME": str(folder / "home"),
            "WARPDESK_OPERATIONS": "tests.workers.child.clusters.operations:OPERATIONS",
            **variables,
        }
        port, door = free_port(), free_port()

        def start(*command: str) -> "subprocess.Popen[bytes]":
            return stack.enter_context(running(folder, *command, **variables))

        if kind == "ray":
            # A token of our own for all clusters of this process: else Ray looks for one in the user's home.
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
            common = ("ray", "start", "--block", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000")
            doors = (f"--port={port}", f"--ray-client-server-port={door}", f"--temp-dir={folder}/ray")
            head = start(*common, "--head", *doors, "--num-cpus=0", "--include-dashboard=false")
            _await_nodes(folder, 1)
            for nodes in (2, 3):  # one after another: Ray tells nodes of one host apart by what was there before
                start(*common, f"--address=127.0.0.1:{port}", "--num-cpus=1")
                _await_nodes(folder, nodes)
            address = f"ray://127.0.0.1:{door}"
        else:
            address = f"tcp://127.0.0.1:{port}"
            head = start("dask", "scheduler", "--host=127.0.0.1", f"--port={port}", "--no-dashboard")
            for _ in range(2):
                start("dask", "worker", address, "--nthreads=1", "--nanny" if nanny else "--no-nanny", "--no-dashboard")
        yield Engine(kind, address, gate, head)


def _await_nodes(folder: Path, nodes: int) -> None:
    log = folder / "engine.log"
    wait_until(lambda: log.read_text().count("Ray runtime started") == nodes, log.read_text, PATIENCE)
