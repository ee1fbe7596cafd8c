"""The programs that check deployment files: those of .ci/tools, of packages beside this Python, or this machine's."""

import os
import shutil
import sys
from pathlib import Path

import pytest

OURS = f"{Path(__file__).parents[2] / '.venv' / 'tools'}{os.pathsep}{Path(sys.executable).parent}"


def tool(name: str) -> str:
    """Its path; skips the test where there is none, and fails it where WARPDESK_REQUIRE_TOOLS=1 promised one."""
    found = shutil.which(name, path=OURS) or shutil.which(name)
    if found is not None:
        return found
    why = f"there is no {name}: `.ci/tools .venv/tools` gets it from Debian's packages"
    if os.environ.get("WARPDESK_REQUIRE_TOOLS") == "1":
        pytest.fail(why)
    pytest.skip(why)
