"""The pip command that installs a missing package for the Python that runs this."""

import shlex
import sys
from pathlib import Path

_CLONE = Path(__file__).resolve().parents[1]


def pip(*arguments: str) -> str:
    """A command of pip, quoted for a shell."""
    return shlex.join([sys.executable, "-m", "pip", *arguments])


def warpdesk(extra: str = "") -> str:
    """Install what Warpdesk itself needs, with an extra of its pyproject.toml: in a clone as the Makefile does.

    Where it was installed as a package, its name asks only for what it lacks.
    """
    of = f"[{extra}]" if extra else ""
    if (_CLONE / "pyproject.toml").exists():
        return pip("install", "--editable", f"{_CLONE}{of}")
    return pip("install", f"warpdesk-server{of}")
