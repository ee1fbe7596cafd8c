"""The pip command that installs a package which a kernel misses, for the Python that runs this."""

import shlex
import sys
from pathlib import Path

_CLONE = Path(__file__).resolve().parents[1]


def pip(*arguments: str) -> str:
    """A pip command for packages that kernels need, quoted for a shell."""
    return shlex.join([sys.executable, "-m", "pip", *arguments])


def warpdesk(extra: str = "") -> str:
    """The pip command that installs what Warpdesk's kernels need, and an extra; in a clone as the Makefile does.

    If Warpdesk was installed as a package, pip installs only what is missing.
    """
    of = f"[{extra}]" if extra else ""
    if (_CLONE / "pyproject.toml").exists():
        return pip("install", "--editable", f"{_CLONE}{of}")
    return pip("install", f"warpdesk-server{of}")
