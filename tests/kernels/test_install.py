"""What is to be typed to install something is right for the Python that runs, and names extras that there are."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from warpdesk_server.kernels import install


def test_a_shell_gives_a_command_to_this_python_as_it_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "a folder" / "python's"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    ran = subprocess.run(["sh", "-c", install.pip("install", "numpy>=2,<2.6", "rq")], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["-m", "pip", "install", "numpy>=2,<2.6", "rq"], ran.stderr


def test_in_a_clone_it_installs_the_clone_as_make_does() -> None:
    assert shlex.split(install.warpdesk("gpu"))[3:] == ["install", "--editable", f"{ROOT}[gpu]"]
    assert shlex.split(install.warpdesk())[3:] == ["install", "--editable", str(ROOT)]


def test_outside_a_clone_it_asks_for_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_CLONE", tmp_path)
    assert shlex.split(install.warpdesk("gpu"))[3:] == ["install", "warpdesk-server[gpu]"]


def test_every_extra_that_is_recommended_is_one() -> None:
    named = set()
    for folder in ("kernels", "workers", "warpdesk_server", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            named |= set(re.findall(r"warpdesk-server\[([\w-]+)\]", text))
            for call in ast.walk(ast.parse(text)):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "install.warpdesk":
                    named |= {argument.value for argument in call.args if isinstance(argument, ast.Constant)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"gpu", "embedded"} <= named
    assert named <= extras.keys()
