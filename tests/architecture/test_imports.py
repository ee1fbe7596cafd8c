"""Layers hold, and importing a module does nothing: no connection, no process, no library that is not needed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("clients/python/warpdesk", "warpdesk_server")


def files(package: Path) -> list[Path]:
    """Every Python file of a package, those behind its links to the repository's folders too."""
    return sorted(Path(folder) / name for folder, _, names in os.walk(package, followlinks=True) for name in names
                  if name.endswith(".py"))  # fmt: skip


def modules() -> list[str]:
    """Every module of ours, by its dotted name."""
    found = []
    for package in map(ROOT.joinpath, PACKAGES):
        for path in files(package):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    # The peers of a benchmark run in an environment of their own, without ours.
    return [name for name in found if not name.endswith("__main__") and ".benchmarks.peers." not in f".{name}"]


def in_a_fresh_interpreter(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_import_layers_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_only_modules_of_arrays_and_datasets_use_numpy_in_app() -> None:
    users = [
        str(path.relative_to(ROOT)) for path in files(ROOT / "app") if re.search(r"import numpy", path.read_text())
    ]
    assert users == [
        *(f"app/arrays/{name}.py" for name in ("ndarray", "nested", "npy_upload")),
        *(f"app/datasets/{name}.py" for name in ("changes", "endpoints", "index", "slices")),
    ]


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("warpdesk_server.app.main", {"cupy", "numba", "torch", "llvmlite"}),
        ("warpdesk_server.kernels.catalogue", {"numpy", "numba", "cupy", "torch", "redis", "fastapi"}),
        ("warpdesk_server.workers.queue.protocol", {"numpy", "numba", "cupy", "fastapi", "redis"}),
        ("warpdesk_server.workers.parent.main", {"numba", "cupy", "torch", "fastapi", "uvicorn"}),
        ("warpdesk", {"numpy", "httpx", "pydantic"}),
        ("warpdesk.cli.main", {"numpy", "httpx", "fastapi", "redis", "pydantic"}),
        ("warpdesk_server.cli", {"numpy", "httpx", "fastapi", "redis"}),
        ("warpdesk.client", {"numba", "cupy", "fastapi", "redis", "rq"}),
    ],
)
def test_a_module_loads_nothing_it_does_not_need(module: str, forbidden: set[str]) -> None:
    loaded = json.loads(in_a_fresh_interpreter(f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"))
    assert forbidden.isdisjoint(loaded), sorted(forbidden.intersection(loaded))


def test_importing_every_module_opens_no_connection_and_starts_no_process_or_thread() -> None:
    # Audit events (PEP 578) see the calls themselves, whoever makes them. Binding and connecting count; creating a
    # socket object does not, since libraries try whether IPv6 exists that way.
    program = f"""
import importlib, os, sys, threading
events = []
watched = {{"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "subprocess.Popen", "os.system",
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "_thread.start_new_thread"}}
sys.addaudithook(lambda name, details: events.append((name, str(details)[:100])) if name in watched else None)
for name in {modules()!r}:
    before = len(events)
    importlib.import_module(name)
    assert events[before:] == [], f"{{name}}: {{events[before:]}}"
assert threading.active_count() == 1, threading.enumerate()
print("done")
"""
    assert in_a_fresh_interpreter(program).strip() == "done"


def test_every_module_opens_with_one_sentence() -> None:
    wrong = []
    for package in PACKAGES:
        for path in files(ROOT / package):
            first = path.read_text().partition("\n")[0]
            if first and not (first.startswith('"""') and len(first) > 10):
                wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []
