"""The directory a service keeps its state in, and how a user names it in a command."""

import os
import shlex
import stat
import sys
from pathlib import Path

from warpdesk_server.workers.settings import default_home


class UnusableHome(Exception):
    """The directory cannot hold the state of a service; the message says what to do."""


def make_private(home: Path) -> None:
    """Create the directory, or close one that belongs to this user to everyone else (mode 0700).

    One that belongs to somebody else stays as it is: an administrator chose its mode. Raises UnusableHome.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = home.stat()
        if found.st_mode & stat.S_ISVTX:  # /tmp, say: closing it would lock every other user out
            raise UnusableHome(f"{home} is shared by all users: set WARPDESK_HOME to a directory in it")
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) & 0o077:
            home.chmod(0o700)
    except OSError as error:
        raise UnusableHome(f"{home} cannot hold the service's state: {error.strerror}") from None


def command(home: Path, arguments: str) -> str:
    """The command line that runs `warpdesk ARGUMENTS` on this home from the working directory, as one would type it."""
    script = Path(sys.executable).parent / "warpdesk"
    started = [_short(script)] if script.exists() else [_short(Path(sys.executable)), "-m", "warpdesk"]
    named = "" if home.resolve() == default_home().resolve() else f"WARPDESK_HOME={shlex.quote(_short(home))} "
    return f"{named}{shlex.join(started)} {arguments}"


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
