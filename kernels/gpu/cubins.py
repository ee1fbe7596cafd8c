"""A disk cache of compiled CUDA kernels (cubins). A cubin is reused only if all that it depends on is the same."""

import errno
import hashlib
import logging
import os
import shlex
import stat
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from warpdesk_server.kernels.gpu.nvrtc import CompileError, Nvrtc
from warpdesk_server.kernels.gpu.source import COMPILE_OPTIONS

log = logging.getLogger("warpdesk.kernels")

_UNFINISHED = ".part"
_LONGEST_WRITE = 3600  # seconds; an older unfinished file was left by a killed process


def default_directory() -> Path:
    """The directory of cubins: WARPDESK_KERNEL_CACHE, else in the user's cache (XDG Base Directory Specification)."""
    if folder := os.environ.get("WARPDESK_KERNEL_CACHE"):
        return Path(folder)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(caches) if caches.startswith("/") else Path.home() / ".cache") / "warpdesk" / "kernels"


@dataclass(frozen=True)
class CubinCounts:
    """The counts of cubins since the process began: compiled, found in the cache, calls of NVRTC, and failed."""

    compiled: int
    found: int
    nvrtc_calls: int
    failed: int = 0


@dataclass(frozen=True)
class Refusal:
    """The reason why a cache directory of cubins is not used, and the shell commands that fix it.

    The commands also remove cubins, which others may have put there.
    """

    reason: str
    remedy: str


class Cubins:
    """A directory of cubins, compiled CUDA kernels, which processes may share.

    A file's name holds two digests. One is of what the cubin was made from: the text with its headers and macros, the
    options, the architecture and NVRTC's version. The other is of its content, so a damaged file is detected and
    compiled again.

    The digests do not tell who wrote a file, and a cubin is code. So a directory is neither read nor written if others
    than its owner can write to it, or if it belongs neither to us nor to root.
    """

    def __init__(self, directory: Path, compiler: Nvrtc, options: tuple[str, ...] = COMPILE_OPTIONS) -> None:
        self.directory = directory
        self.compiler = compiler
        self._options = options
        self._compiled = 0
        self._found = 0
        self._failed = 0
        self._counting = threading.Lock()
        self._warned = False

    @property
    def counts(self) -> CubinCounts:
        return CubinCounts(self._compiled, self._found, self.compiler.calls, self._failed)

    def cubin(self, text: str, name: str, architecture: str) -> bytes:
        """The cubin of a CUDA source: cached, or compiled now and then cached if possible. Raises CompileError."""
        if (found := self.find(text, architecture)) is not None:
            with self._counting:
                self._found += 1
            return found
        cubin = self._compile(text, name, architecture)
        try:
            self._write(text, architecture, cubin)
        except OSError as error:
            self._tell(error)
        return cubin

    def find(self, text: str, architecture: str) -> bytes | None:
        """The cached cubin of a CUDA source; None if there is none. A damaged file is removed.

        The file is read once, for digest and result, because another process may replace it at any moment.
        """
        with suppress(OSError):
            self._check()
            for path in self.directory.glob(f"{self._prefix(text, architecture)}*.cubin"):
                with suppress(OSError):
                    content = path.read_bytes()
                    if path.stem.rpartition("-")[2] == _digest(content):
                        return content
                    path.unlink()
        return None

    def refusal(self) -> Refusal | None:
        """The reason why the directory of cubins is not used; None if it is safe, or if it does not exist."""
        try:
            found = self.directory.stat()
        except OSError:
            return None
        us, owner, mode = os.geteuid(), found.st_uid, stat.S_IMODE(found.st_mode)
        foreign, shared = owner not in (0, us), bool(mode & (stat.S_IWGRP | stat.S_IWOTH))
        reasons, commands, place = [], [], shlex.quote(str(self.directory))
        if foreign:
            reasons.append(f"it belongs to user {owner}, who could put code there, and not to {us} or root")
            commands.append(f"{'sudo ' if us else ''}chown {us} {place}")
        if shared:
            reasons.append(f"others could put code there, its mode is {mode:04o}")
        if not reasons:
            return None
        if mode & stat.S_ISVTX:  # a directory that is shared on purpose, such as /tmp
            return Refusal("; ".join(reasons), f"export WARPDESK_KERNEL_CACHE={place}/warpdesk")
        sudo = "sudo " if us and owner == 0 else ""
        if shared:
            commands.append(f"{sudo}chmod go-w {place}")
        commands.append(f"{sudo}rm -f {place}/*.cubin")
        return Refusal("; ".join(reasons), " && ".join(commands))

    def keep(self, text: str, name: str, architecture: str) -> bool:
        """Compile a CUDA source unless its cubin is cached. Returns whether it did. Raises CompileError, OSError."""
        if self.find(text, architecture) is not None:
            return False
        self._write(text, architecture, self._compile(text, name, architecture))
        return True

    def kept(self) -> list[Path]:
        """The paths of all cached cubins."""
        with suppress(PermissionError):  # a parent directory that we may not enter
            return sorted(self.directory.glob("sm_*.cubin"))
        return []

    def remove_unused(self, texts: Iterable[str]) -> int:
        """Remove cubins that none of these sources needs, and unfinished files of killed processes; returns how many.

        A cubin of another NVRTC or of other options counts as not needed. A process that has loaded a cubin does not
        need the file any more.
        """
        texts = list(texts)
        architectures = {path.name.partition("-")[0] for path in self.kept()}
        used = {self._prefix(text, architecture) for text in texts for architecture in architectures}
        unused = [path for path in self.kept() if path.stem.rpartition("-")[0] + "-" not in used]
        unused += (path for path in self.directory.glob(f"*{_UNFINISHED}") if _age(path) > _LONGEST_WRITE)
        for path in unused:
            path.unlink(missing_ok=True)
        return len(unused)

    def _compile(self, text: str, name: str, architecture: str) -> bytes:
        try:
            cubin = self.compiler.compile(text, name, architecture, self._options).cubin
        except CompileError:
            with self._counting:
                self._failed += 1
            raise
        with self._counting:
            self._compiled += 1
        return cubin

    def _prefix(self, text: str, architecture: str) -> str:
        made_from = "\0".join([self.compiler.version, architecture, *self._options, text])
        return f"{architecture}-{_digest(made_from.encode())}-"

    def _write(self, text: str, architecture: str, cubin: bytes) -> None:
        """Write a cubin to the cache atomically: other processes see the whole file or none."""
        self.directory.mkdir(0o755, parents=True, exist_ok=True)  # the umask may allow a group to write
        self._check()
        descriptor, unfinished = tempfile.mkstemp(_UNFINISHED, dir=self.directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o644)  # an image is built by one user and runs as another
                file.write(cubin)
            Path(unfinished).replace(self.directory / f"{self._prefix(text, architecture)}{_digest(cubin)}.cubin")
        except OSError:
            Path(unfinished).unlink(missing_ok=True)
            raise

    def _check(self) -> None:
        """Raise PermissionError if another user could put code into the directory of cubins."""
        if (refused := self.refusal()) is not None:
            raise PermissionError(errno.EPERM, f"{refused.reason}; to mend it: {refused.remedy}")

    def _tell(self, error: OSError) -> None:
        if not self._warned:
            log.warning(
                "compiled kernels cannot be kept in %s (%s): every start compiles them again", self.directory, error
            )
        self._warned = True


def _age(path: Path) -> float:
    """Seconds since a file of the cubin cache was written; 0 if it no longer exists."""
    with suppress(OSError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
