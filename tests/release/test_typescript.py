"""Both common TypeScript generators take the OpenAPI document, and what they write compiles in strict mode."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from warpdesk_server.app.main import create_app
from warpdesk_server.app.settings import Settings

pytestmark = [pytest.mark.release, pytest.mark.timeout(900)]

SOURCES = Path(__file__).parent / "typescript"
INSTALLED = ROOT / ".venv" / "typescript"  # kept: it is 60 MB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("npm") is None:
        if os.environ.get("WARPDESK_REQUIRE_TOOLS") == "1":
            pytest.fail("npm is not installed", pytrace=False)
        pytest.skip("npm is not installed: apt-get install nodejs npm")
    INSTALLED.mkdir(exist_ok=True)
    shutil.copy(SOURCES / "package.json", INSTALLED)
    _run(INSTALLED, "npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent")
    place = tmp_path_factory.mktemp("typescript")
    for name in ("package.json", "use.ts"):
        shutil.copy(SOURCES / name, place)
    (place / "node_modules").symlink_to(INSTALLED / "node_modules")
    document = create_app(Settings(home=tmp_path_factory.mktemp("home"))).openapi()
    (place / "openapi.json").write_text(json.dumps(document))
    return place


def _run(folder: Path, *command: str) -> None:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}"


def test_what_both_generators_write_compiles_in_strict_mode(folder: Path) -> None:
    # With defaults as required fields, each request would have to send all of them.
    _run(
        folder,
        "npx",
        "openapi-typescript",
        "openapi.json",
        "-o",
        "openapi-typescript.ts",
        "--default-non-nullable=false",
    )
    _run(folder, "npx", "openapi-ts", "-i", "openapi.json", "-o", "hey-api")
    _run(
        folder,
        *(
            "npx",
            "tsc",
            "--strict",
            "--noEmit",
            "--noUnusedLocals",
            "false",
            "--target",
            "es2022",
            "--module",
            "esnext",
        ),
        *("--moduleResolution", "bundler", "--lib", "es2022,dom,dom.iterable", "use.ts", "hey-api/index.ts"),
    )
