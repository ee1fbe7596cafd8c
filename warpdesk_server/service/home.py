"""The service's home directory, which holds its state, and how a user names it in a command."""

import os
import shlex
import stat
import sys
from pathlib import Path

from warpdesk_server.workers.settings import default_home


class UnusableHome(Exception):
    """The directory cannot hold the state of a service; the message says what to do."""


def make_private(home: Path) -> None:
    """Create the service's home directory with mode 0700, or give that mode to an existing one of this user.

    Another user's directory is not changed: an administrator chose its mode. Raises UnusableHome.
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
    """The command line to type in the working directory to run `warpdesk ARGUMENTS` on a service's home."""
    script = Path(sys.executable).parent / "warpdesk"
    started = [_short(script)] if script.exists() else [_short(Path(sys.executable)), "-m", "warpdesk"]
    named = "" if home.resolve() == default_home().resolve() else f"WARPDESK_HOME={shlex.quote(_short(home))} "
    return f"{named}{shlex.join(started)} {arguments}"


def _short(path: Path) -> str:
    """The path of the home or its `warpdesk` as text, relative to the working directory if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
