"""Both distributions as a release has them, and fresh environments that they are installed into."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, serve

TOOLS = ROOT / ".venv" / "release" / "bin"
OLD = "559b2ef"  # a home of that commit can be upgraded
BEFORE = "edff870"  # the release before: its API and workers share a Redis with ours


@dataclass(frozen=True)
class Environment:
    """A virtual environment of a user, outside of the repository."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages"))

    def run(self, *command: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """A command of the environment, in a folder of its own, without the settings of a developer's shell."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("WARPDESK_", "PYTHON"))}
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=self.folder.parent, env={**clean, **variables}, capture_output=True, text=True, timeout=400,
        )  # fmt: skip

    def megabytes(self) -> float:
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if not path.is_dir()) / 1e6


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def installed(folder: Path, *requirements: str | Path) -> Environment:
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements)
    return Environment(folder)


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels and both source archives, made from the files that git would commit."""
    folder = tmp_path_factory.mktemp("release")
    sources = folder / "sources"
    sources.mkdir()
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard").split()
    archive = folder / "sources.tar"
    run("tar", "--create", "--file", archive, *(name for name in names if os.path.lexists(ROOT / name)))
    run("tar", "--extract", "--file", archive, "--directory", sources)
    for project in ("clients/python", "."):
        run(TOOLS / "python", "-m", "build", "--outdir", folder / "dist", sources / project)
    return folder / "dist"


@pytest.fixture(scope="session")
def client_alone(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    (wheel,) = distributions.glob("warpdesk-*.whl")
    return installed(tmp_path_factory.mktemp("client") / "venv", wheel)


@pytest.fixture(scope="session")
def whole_service(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The service with its own Redis, beside packages of a user that are called `app` and `kernels`."""
    (wheel,) = distributions.glob("warpdesk_server-*.whl")
    environment = installed(
        tmp_path_factory.mktemp("service") / "venv", "--find-links", distributions, f"{wheel}[embedded]"
    )
    for name in ("app", "kernels"):
        (environment.site / name).mkdir()
        (environment.site / name / "__init__.py").write_text('OWNER = "a user"\n')
    return environment


@pytest.fixture(scope="session")
def old_service(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The service of the commit `OLD`, as it was installed then."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "sources").mkdir()
    run("git", "archive", "--output", folder / "sources.tar", OLD)
    run("tar", "--extract", "--file", folder / "sources.tar", "--directory", folder / "sources")
    return installed(folder / "venv", f"{folder / 'sources'}[embedded]")


@pytest.fixture(scope="session")
def sources_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the commit `BEFORE`, which run with the packages that are installed here."""
    folder = tmp_path_factory.mktemp("before")
    run("git", "archive", "--output", folder / "sources.tar", BEFORE)
    run("tar", "--extract", "--file", folder / "sources.tar", "--directory", folder)
    return folder


@pytest.fixture(scope="session")
def service_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., serve]:
    """`warpdesk serve` of an environment on a home. Code that was compiled once is kept for all of them."""
    compiled = tmp_path_factory.mktemp("compiled")

    def service(environment: Environment, home: Path, *arguments: str, ready: bool = True) -> serve:
        made = serve(home, *arguments, ready=ready, NUMBA_CACHE_DIR=str(compiled), PYTHONPATH="")
        made.python, made.cwd = environment.python, environment.folder.parent
        return made

    return service
