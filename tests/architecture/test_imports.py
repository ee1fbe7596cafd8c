"""Layers hold, and importing a module does nothing: no connection, no process, no library that is not needed."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "kernels", "privacy", "warpdesk", "workers")


def modules() -> list[str]:
    """Every module of ours, by its dotted name."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in found if not name.endswith("__main__")]


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


def test_every_module_of_workers_is_either_known_to_app_or_forbidden_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [forbidden] = [contract["forbidden_modules"] for contract in contracts if contract["type"] == "forbidden"]
    known = {
        "workers",
        "workers.queue.buckets",
        "workers.queue.counts",
        "workers.logs",
        "workers.queue.lua",
        "workers.queue.protocol",
        "workers.queue.jobs",
        "workers.store.spool",
        "workers.settings",
    }
    behind_them = {
        "workers.queue.buckets",
        "workers.store.disk",
        "workers.store.npy",
        "workers.prices",
        "workers.process",
        "workers.store.rows",
        "workers.queue.scripts",
        "workers.store.usage",
    }
    ours = {name for name in modules() if name.split(".")[0] == "workers"}
    assert ours - known - behind_them == {name for name in forbidden if name.startswith("workers")}


def test_only_one_module_of_app_uses_numpy() -> None:
    users = [path.name for path in sorted((ROOT / "app").glob("*.py")) if re.search(r"import numpy", path.read_text())]
    assert users == ["arrays.py"]


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("app.main", {"cupy", "numba", "torch", "llvmlite"}),
        ("kernels.catalogue", {"numpy", "numba", "cupy", "torch", "redis", "fastapi"}),
        ("workers.queue.protocol", {"numpy", "numba", "cupy", "fastapi", "redis"}),
        ("workers.parent.main", {"numba", "cupy", "torch", "fastapi", "uvicorn"}),
        ("warpdesk", {"numpy", "httpx", "pydantic"}),
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
        for path in sorted((ROOT / package).rglob("*.py")):
            first = path.read_text().partition("\n")[0]
            if first and not (first.startswith('"""') and len(first) > 10):
                wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []
