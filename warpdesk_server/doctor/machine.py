"""The doctor's checks of the machine: system, Python and libraries, memory, processors, disk."""

import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from warpdesk_server.app.settings import Settings
from warpdesk_server.doctor.check import Check
from warpdesk_server.kernels import install

LIBRARIES = (
    *("numpy", "numba", "llvmlite", "pydantic", "pydantic-settings", "redis", "rq"),
    *("fastapi", "uvicorn", "httpx", "blake3", "cryptography", "jiter", "nvidia-ml-py", "prometheus-client"),
)

_LEAST_DISK = 256 << 20  # bytes


def system() -> Check:
    release = "unknown distribution"
    with suppress(OSError):
        release = platform.freedesktop_os_release().get("PRETTY_NAME", release)
    found = f"{release}, {platform.system()} {platform.release()}, {platform.machine()}"
    if inside := container():
        found += f", inside {inside}"
    if platform.system() != "Linux":
        return Check("system", "failed", found, "run the service on Linux, or in a Linux container")
    return Check("system", "ok", found)


def python() -> Check:
    versions, missing = {}, []
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    found = f"{platform.python_version()} at {sys.executable}"
    if missing:
        return Check("python", "failed", f"{found}, without {', '.join(missing)}", install.warpdesk(), versions)
    shown = ", ".join(f"{name} {versions[name]}" for name in ("numpy", "numba", "redis", "rq", "fastapi", "pydantic"))
    return Check("python", "ok", f"{found}, {shown}", details=versions)


def memory(settings: Settings, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Check:
    """The doctor's check of the memory of the machine or container: whether it is enough for the largest job the
    service accepts."""
    lines = (proc / "meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) << 10 for name, rest in (line.split(":") for line in lines) if rest.split()}
    total, available = sizes["MemTotal"], sizes["MemAvailable"]
    limit = _limit(proc, cgroups)
    usable = min(available, limit) if limit else available
    found = f"{gib(total)}, {gib(available)} available" + (f", this process may use {gib(limit)}" if limit else "")
    details = {"total": total, "available": available, "limit": limit}
    if usable < settings.max_job_bytes:
        remedy = f"export WARPDESK_MAX_JOB_BYTES={usable // 2 >> 20 << 20}"
        found += f": a job may ask for {gib(settings.max_job_bytes)}"
        return Check("memory", "warning", found, remedy, details)
    return Check("memory", "ok", found, details=details)


def processors(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Check:
    """The doctor's check of how many processors this process may use, and the container's quota of processor time."""
    usable = len(os.sched_getaffinity(0))
    found = f"{usable} of {os.cpu_count()}, {_model(proc)}"
    quota = _quota(proc, cgroups)
    details = {"usable": usable, "present": os.cpu_count(), "quota": quota}
    if quota is not None:
        found += f", for {quota:.3g} of them in time"
    threads = int(os.environ.get("NUMBA_NUM_THREADS", usable))
    if quota is not None and quota < threads:
        remedy = f"export NUMBA_NUM_THREADS={max(1, int(quota))}, or give the container more processors"
        return Check("processors", "warning", f"{found}: {threads} threads would wait for each other", remedy, details)
    return Check("processors", "ok", found, details=details)


def home(settings: Settings) -> Check:
    """The doctor's check of the service's home directory: its owner, its mode and its free space. Nothing is
    created."""
    place = settings.home
    existing = nearest(place)
    free = shutil.disk_usage(existing).free
    there = existing == place
    details = {"path": str(place), "exists": there, "free": free}
    found = f"{place}, {gib(free)} free"
    if not there:
        found += ", not there yet"
    if there and not place.is_dir():
        return Check("home", "failed", f"{place} is not a directory", "export WARPDESK_HOME=a directory", details)
    if not os.access(existing, os.W_OK | os.X_OK):
        remedy = f"sudo install -d -m 700 -o {_user()} {place}, or export WARPDESK_HOME=a directory of yours"
        return Check("home", "failed", f"{found}: {existing} cannot be written by {_user()}", remedy, details)
    if free < _LEAST_DISK:
        remedy = "free some space, or export WARPDESK_HOME=a directory on a larger disk"
        return Check("home", "failed", f"{found}: the queue's log, arrays and results need more", remedy, details)
    if there:
        mode = stat.S_IMODE(place.stat().st_mode)
        if mode & stat.S_ISVTX:
            return Check(
                "home", "failed", f"{found}: all users share it", f"export WARPDESK_HOME={place}/name", details
            )
        if mode & 0o077:
            remedy = f"chmod 700 {place}"
            return Check("home", "warning", f"{found}, readable by others (mode {mode:o})", remedy, details)
    if free < 2 * settings.max_array:
        remedy = "export WARPDESK_HOME=a directory on a larger disk, or a smaller WARPDESK_MAX_ARRAY"
        found += f": one upload may take {gib(settings.max_array)}"
        return Check("home", "warning", found, remedy, details)
    return Check("home", "ok", found, details=details)


def nearest(place: Path) -> Path:
    """The path of the doctor's check, or its nearest parent that exists and that this user can see."""
    for folder in (place, *place.absolute().parents):
        with suppress(OSError):
            folder.stat()
            return folder
    return Path("/")


def container(root: Path = Path("/")) -> str | None:
    """The kind of container that the doctor runs in; None on a plain machine."""
    if (root / ".dockerenv").exists():
        return "a Docker container"
    if (root / "run/.containerenv").exists():
        return "a Podman container"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "a Kubernetes pod"
    return None


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of the doctor's own control groups, the innermost first (version 2), and those of version 1."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                group = Path(path.lstrip("/"))
                yield from (cgroups / part for part in (group, *group.parents))
    yield from (cgroups / "memory", cgroups / "cpu")


def _limit(proc: Path, cgroups: Path) -> int | None:
    """The lowest memory limit of the doctor's own control groups, in bytes."""
    limits = []
    for group in _groups(proc, cgroups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((group / name).read_text()))
    real = [limit for limit in limits if limit < 1 << 60]  # version 1 writes a huge number for none
    return min(real, default=None)


def _quota(proc: Path, cgroups: Path) -> float | None:
    """The lowest quota of processor time of the doctor's own control groups, 1.0 for one processor."""
    quotas = []
    for group in _groups(proc, cgroups):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota, period = ((group / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
            quotas.append(int(quota) / int(period))
    return min((quota for quota in quotas if quota > 0), default=None)


def _model(proc: Path) -> str:
    with suppress(OSError):
        for line in (proc / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _user() -> str:
    import pwd

    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def gib(size: int) -> str:
    """Format a number of bytes in binary units, for a line of the doctor."""
    return f"{size / (1 << 30):.3g} GiB"
