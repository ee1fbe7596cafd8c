"""A cache of compiled kernels on disk: a cubin is reused only where all that it depends on is the same."""

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
_LONGEST_WRITE = 3600  # seconds; what is older was left by a process that was killed


def default_directory() -> Path:
    """Where cubins are kept: WARPDESK_KERNEL_CACHE, else with the user's caches (XDG Base Directory Specification)."""
    if folder := os.environ.get("WARPDESK_KERNEL_CACHE"):
        return Path(folder)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(caches) if caches.startswith("/") else Path.home() / ".cache") / "warpdesk" / "kernels"


@dataclass(frozen=True)
class CubinCounts:
    """Since the process began: how many cubins were compiled, how many were there, what NVRTC was asked, and how many
    could not be compiled."""

    compiled: int
    found: int
    nvrtc_calls: int
    failed: int = 0


@dataclass(frozen=True)
class Refusal:
    """Why a directory is not used, and the commands after which it is; they remove what others may have put there."""

    reason: str
    remedy: str


class Cubins:
    """A directory of cubins. A file's name holds a digest of what it was made from (text, headers and macros in it,
    options, architecture, NVRTC's version) and one of what is in it: so a change of any of them is another file, and a
    file that was cut off or altered is seen and made anew. Processes may share the directory.

    The digests tell what is damaged, not who wrote it, and a cubin is code: a directory that others than its owner can
    write to, or that is neither ours nor root's, is not read and nothing is kept in it."""

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
        """The cubin of a source: kept, or compiled and, where the directory allows, kept. Raises CompileError."""
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
        """The kept cubin of a source; one that is not what it was when it was written is removed.

        What was digested is what is returned: the file may go, or become another, at any moment.
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
        """Why nothing is read from the directory or kept in it; None where others can put no code there, or there is no
        directory."""
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
        if mode & stat.S_ISVTX:  # a place that all share on purpose, /tmp say
            return Refusal("; ".join(reasons), f"export WARPDESK_KERNEL_CACHE={place}/warpdesk")
        sudo = "sudo " if us and owner == 0 else ""
        if shared:
            commands.append(f"{sudo}chmod go-w {place}")
        commands.append(f"{sudo}rm -f {place}/*.cubin")
        return Refusal("; ".join(reasons), " && ".join(commands))

    def keep(self, text: str, name: str, architecture: str) -> bool:
        """Compile a source unless its cubin is kept; returns whether it was compiled. Raises CompileError, OSError."""
        if self.find(text, architecture) is not None:
            return False
        self._write(text, architecture, self._compile(text, name, architecture))
        return True

    def kept(self) -> list[Path]:
        """Every cubin in the directory, of any age."""
        with suppress(PermissionError):  # a folder above it that we may not enter
            return sorted(self.directory.glob("sm_*.cubin"))
        return []

    def remove_unused(self, texts: Iterable[str]) -> int:
        """Remove what was made from other sources than these, by another NVRTC or with other options, and what a killed
        process left unfinished; returns how many. A process that has loaded a cubin no longer needs the file."""
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
        """Under its name it is whole: another process that reads or writes it at this moment sees all of it."""
        self.directory.mkdir(0o755, parents=True, exist_ok=True)  # whatever the umask leaves to a group
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
        """Raise PermissionError where somebody else could put code into the directory."""
        if (refused := self.refusal()) is not None:
            raise PermissionError(errno.EPERM, f"{refused.reason}; to mend it: {refused.remedy}")

    def _tell(self, error: OSError) -> None:
        if not self._warned:
            log.warning(
                "compiled kernels cannot be kept in %s (%s): every start compiles them again", self.directory, error
            )
        self._warned = True


def _age(path: Path) -> float:
    """Seconds since a file was written; 0 where it has just gone."""
    with suppress(OSError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
