"""The README's `curl` lines do what it says they do."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, Service, wait_until_ready

pytestmark = pytest.mark.timeout(500)

README = (ROOT / "README.md").read_text()
_BLOCK = re.compile(r"^```(?:console|bash|sh|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CURL = re.compile(r"^(?:\w+=\"?\$\()?curl\b")  # also `ID=$(curl ... | ...)`
_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):\d+")


def curl_lines(text: str) -> list[str]:
    """Every curl command of the shell blocks, in order, lines ended by a backslash joined, prompts left out."""
    found = []
    for block in _BLOCK.findall(text):
        joined = block.replace("\\\n", " ")
        lines = (line.removeprefix("$ ").strip() for line in joined.splitlines())
        found += [line for line in lines if _CURL.match(line)]
    return found


def addressed(line: str, url: str) -> str:
    """The same command for a service elsewhere, failing where HTTP says so."""
    return _ADDRESS.sub(url.removeprefix("http://"), line).replace("curl ", "curl --fail-with-body ", 1)


def need_curl() -> None:
    """Skip where there is no curl; fail in continuous integration, which has to run these lines."""
    if shutil.which("curl") is None:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail("CI is set and curl is missing: the README's lines were not run")
        pytest.skip("curl is not installed here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where commands run: the examples are there as they are in a clone, and what is saved is thrown away."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_the_curl_lines_of_the_readme_succeed(service: Service, folder: Path) -> None:
    need_curl()
    lines = curl_lines(README)
    assert lines, "the README shows no curl line"
    wait_until_ready(service)
    # One shell, so that a line may use what an earlier one put into a variable.
    script = "set -euo pipefail\n" + "\necho\n".join(addressed(line, service.url) for line in lines)
    ran = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, f"{script}\n{ran.stdout}\n{ran.stderr}"
    jobs = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"id":"job_')]
    assert [job["status"] for job in jobs if job["status"] in ("failed", "canceled", "expired")] == []


def test_curl_lines_are_found_in_shell_blocks_only() -> None:
    text = "```console\n$ curl -s a \\\n  -d b\nmake\nID=$(curl -s c)\n```\n```json\ncurl d\n```\ncurl e\n"
    assert curl_lines(text) == ["curl -s a    -d b", "ID=$(curl -s c)"]


def test_a_curl_line_that_is_refused_fails(service: Service) -> None:
    need_curl()
    wait_until_ready(service)
    line = addressed("curl -s http://localhost:8000/v1/jobs/none", service.url)
    assert subprocess.run(["bash", "-c", line], capture_output=True, timeout=30).returncode == 22


def test_a_missing_curl_fails_in_continuous_integration_and_is_a_skip_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI is set and curl is missing"):
        need_curl()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception):
        need_curl()
