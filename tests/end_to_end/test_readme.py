"""The examples of the README and the tutorials, pasted twice into a shell and into Python."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Service, wait_until_ready

pytestmark = pytest.mark.timeout(500)

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):\d+")
_SHELLS = {"console", "bash", "sh", "shell"}

# Every curl of a block fails where HTTP says so, and its answer ends with a line.
_STRICT = 'set -euo pipefail\ncurl() { command curl --fail-with-body -w "\\n" "$@"; }\n'


def shell_blocks(text: str) -> list[str]:
    """Every shell block that asks the service something, prompts left out."""
    blocks = [block for language, block in _BLOCK.findall(text) if language in _SHELLS]
    return [re.sub(r"^\$ ", "", block, flags=re.MULTILINE) for block in blocks if "curl -" in block]


def python_blocks(text: str) -> list[str]:
    return [block for language, block in _BLOCK.findall(text) if language == "python"]


def addressed(block: str, url: str) -> str:
    """The same example for a service elsewhere."""
    return _ADDRESS.sub(url.removeprefix("http://"), block)


def run_shell(block: str, url: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    script = _STRICT + addressed(block, url)
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=200)


def need_curl() -> None:
    """Skip where there is no curl; fail in continuous integration, which has to run these lines."""
    if shutil.which("curl") is None:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail("CI is set and curl is missing: the README's lines were not run")
        pytest.skip("curl is not installed here")


def jobs_of(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"id":"job_')]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where commands run: the examples are there as they are in a clone, and what is saved is thrown away."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_shell_examples_of_a_page_succeed_when_they_are_pasted_twice(
    page: Path, service: Service, folder: Path
) -> None:
    need_curl()
    wait_until_ready(service)
    for block in shell_blocks(page.read_text()) * 2:
        ran = run_shell(block, service.url, folder)
        assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
        assert [job for job in jobs_of(ran.stdout) if job["status"] != "succeeded"] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_examples_of_a_page_succeed_when_they_are_pasted_twice(
    page: Path, service: Service, folder: Path
) -> None:
    wait_until_ready(service)
    for block in python_blocks(page.read_text()) * 2:
        ran = subprocess.run(
            [sys.executable, "-c", addressed(block, service.url)],
            cwd=folder, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert ran.returncode == 0, f"{block}\n{ran.stdout}\n{ran.stderr}"
        assert ran.stdout.strip()


def test_the_noisy_total_of_the_budget_page_is_as_close_as_the_page_says(service: Service, folder: Path) -> None:
    need_curl()
    wait_until_ready(service)
    (block,) = shell_blocks((ROOT / "docs" / "tutorials" / "privacy-budget.md").read_text())
    (job,) = jobs_of(run_shell(block, service.url, folder).stdout)
    (noisy,) = job["result"]["outputs"]["noisy"]  # type: ignore[index]
    # The exact total, and 20 times the scale of the noise: once in 500 million runs it is further away.
    assert abs(noisy - 500_050) < 20 * 1000


def test_each_page_of_examples_has_some() -> None:
    texts = [page.read_text() for page in PAGES]
    assert [bool(shell_blocks(text) or python_blocks(text)) for text in texts] == [True] * len(PAGES)
    assert len(PAGES) >= 4
    assert shell_blocks(texts[0])
    assert python_blocks(texts[0])


def test_only_shell_blocks_that_use_curl_are_run() -> None:
    text = "```console\n$ curl -s a \\\n  -d b\n```\n```console\nmake\n```\n```json\ncurl -s d\n```\ncurl -s e\n"
    assert shell_blocks(text) == ["curl -s a \\\n  -d b\n"]


def test_an_example_that_is_refused_fails(service: Service, folder: Path) -> None:
    need_curl()
    wait_until_ready(service)
    assert run_shell("curl -s http://localhost:8000/v1/jobs/none", service.url, folder).returncode == 22


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
