"""The worker's settings, each read from an environment variable `WARPDESK_<NAME>`."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from warpdesk_server.kernels.fingerprint import fingerprint
from warpdesk_server.kernels.operation import Computation, Operation
from warpdesk_server.kernels.plans import Plan
from warpdesk_server.kernels.task import Task
from warpdesk_server.workers.logs import LogFormat, LogLevel
from warpdesk_server.workers.prices import parse

# When data is on the disk. "always": arrays before their id is answered or a job that names them is enqueued,
# results before they are visible, each change of Redis before it is confirmed. "everysec": within a second or so for
# Redis, when the kernel sees fit for files. Survives a killed process either way; this is about power cuts.
# "replicated": as "always", and no answer tells of a change of Redis before replicas have it on their disks.
Durability = Literal["always", "everysec", "replicated"]

# Which jobs a worker takes. "both": quick ones, and it starts another process beside it while there are long ones, so
# that no quick job waits for a long one; the same for tasks. "all": both kinds in turn in one process, and no tasks.
# "quick", "long" and "tasks": one kind alone.
Takes = Literal["both", "all", "quick", "long", "tasks"]


def default_home() -> Path:
    """The default of WARPDESK_HOME: `~/.local/state/warpdesk`, or `warpdesk` in XDG_STATE_HOME if that is set.

    Source: XDG Base Directory Specification.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "warpdesk"


def ledger_in(home: Path) -> str:
    """The default of WARPDESK_LEDGER_URL: the privacy ledger that one machine keeps in its home directory."""
    return f"sqlite:///{home.absolute()}/ledger.db"


# Settings that may be given as a file, WARPDESK_<NAME>_FILE: `docker inspect` and manifests show an environment.
_IN_FILES = ("redis_url", "ledger_url", "ledger_anchor_url", "api_key")


class SecretsOfFiles(BaseSettings):
    """The base class of settings whose secrets may be given as names of files that hold them."""

    @model_validator(mode="before")
    @classmethod
    def _read_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in cls.model_fields.keys() & _IN_FILES:
            variable = f"WARPDESK_{name}".upper()
            if not (file := os.environ.get(f"{variable}_FILE")):
                continue
            if values.get(name):
                raise ValueError(f"{variable} and {variable}_FILE are both set: unset one")
            try:
                values[name] = Path(file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"{variable}_FILE: {file} cannot be read ({type(error).__name__})") from None
            if not values[name]:
                raise ValueError(f"{variable}_FILE: {file} is empty")
        return values


class WorkerSettings(SecretsOfFiles):
    """The settings of a worker. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix="WARPDESK_", extra="ignore", frozen=True, hide_input_in_errors=True)

    home: Path = Field(default_factory=default_home)
    redis_url: str = "redis://127.0.0.1:6379/0"
    store: Path | None = None  # the spool directory, <home>/store when unset
    durability: Durability = "always"
    replicas: Annotated[int, Field(ge=1)] = 1  # of Redis, that must have a change on the disk: durability "replicated"
    kept_free_bytes: Annotated[int, Field(ge=0)] | None = None  # of the store's disk: see workers.store.disk.reserve
    api_url: str = ""  # of the service, for a worker that has no access to its store: arrays then go through the API
    api_key: SecretStr = SecretStr("")  # with the scope "worker"
    cache_bytes: Annotated[int, Field(ge=0)] = 8 << 30  # of inputs that came through the API, kept for other jobs
    cache_seconds: Annotated[float, Field(ge=0)] = 3600.0  # how long one is kept after it was last used
    # Where privacy budgets are kept: sqlite:////path, for processes of this machine, or postgresql://user@host/name.
    # When unset a worker with access to the store has the home's; one without has none, and gives charged jobs back.
    ledger_url: SecretStr = SecretStr("")
    ledger_key_file: Path | None = None  # <home>/ledger.key when unset: what noise seeds are wrapped with
    device: str = ""  # "", "cpu", a CUDA index, a GPU or MIG UUID, or "module:factory" of a stand-in for a GPU
    gpu_memory: str = ""  # what a worker takes of its GPU, in bytes or as a share: see kernels.gpu.memory.limit_of
    # A cluster that computes this worker's shards, "" for none: `workers.child.clusters.link.open_cluster`.
    shards_on: Annotated[str, Field(pattern=r"^(ray|(ray|dask|tcp|tls)://.+)?$")] = ""
    auto: Literal["quicker", "gpu"] = "quicker"  # what `backend: auto` takes where both could: see workers.child.cost
    gpm: bool = False  # whether a GPU's performance monitoring is read: see workers.gpu.gpm
    prices: Annotated[dict[str, float], NoDecode, BeforeValidator(parse)] = {}  # of devices: see workers.prices
    takes: Takes = "both"
    operations: str = "warpdesk_server.kernels.catalogue:CATALOGUE"  # the catalogue, "module:attribute"
    task_python: str = ""  # the interpreter of the worker that is started for tasks, in an environment of their own
    # Of a task: between two checkpoints at the least, which take a fiftieth of its time at most. 0: after each step.
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    canary_seconds: Annotated[float, Field(gt=0)] = 60.0  # how often a GPU is asked what is known, between jobs
    canary_deadline_seconds: Annotated[float, Field(gt=0)] = 1.5  # how long its answer may take: no word is a hang
    cool_down_seconds: Annotated[float, Field(gt=0)] = 30.0  # how long what failed on a GPU is kept off it at first
    start_seconds: Annotated[float, Field(gt=0)] = 300.0  # how long a starting child may be silent, trying one example
    # How long a job waits before each next try after a fault that may pass, as a full disk: a JSON list.
    retry_delays: tuple[float, ...] = (1.0, 4.0, 16.0)
    log_level: LogLevel = "warning"  # "info": a line for each job that ends here
    log_format: LogFormat = "text"
    drain_seconds: Annotated[float, Field(ge=0)] = 20.0  # how long a stopping worker lets its job run on
    # When a worker stops by itself, as on SIGTERM and with exit code 0: after so long without a job, counted from when
    # it could first take one; and so long after its start, drain not counted. Never where unset.
    idle_exit_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if self.api_url and not self.api_key.get_secret_value():
            raise ValueError("WARPDESK_API_URL is set and WARPDESK_API_KEY is not: create a key with the scope worker")
        return self

    @model_validator(mode="after")
    def _shares_its_ledger(self) -> Self:
        url = self.ledger_url.get_secret_value()
        if self.api_url and url.startswith("sqlite"):
            raise ValueError(
                "WARPDESK_LEDGER_URL is an SQLite file and this worker has its arrays from another host: budgets that "
                "several hosts charge are kept in PostgreSQL"
            )
        return self

    @property
    def store_directory(self) -> Path:
        return self.store or self.home / "store"

    @property
    def ledger(self) -> str | None:
        """The URL of the privacy ledger by the worker's settings; None if this worker has none."""
        return self.ledger_url.get_secret_value() or (None if self.api_url else ledger_in(self.home))

    @property
    def ledger_key_path(self) -> Path:
        return self.ledger_key_file or self.home / "ledger.key"

    def catalogue(self) -> Mapping[str, Operation]:
        """The operations in the catalogue that the worker's settings name; none for a worker that takes tasks."""
        if self.takes == "tasks":
            return {}
        return {name: found for name, found in self._computations().items() if isinstance(found, Operation)}

    def tasks(self) -> Mapping[str, Task]:
        """The tasks in the catalogue that the worker's settings name."""
        return {name: found for name, found in self._computations().items() if isinstance(found, Task)}

    def plans(self) -> Mapping[str, Plan]:
        """The computation `plan` in the catalogue that the worker's settings name, by its name."""
        if self.takes == "tasks":
            return {}
        return {name: found for name, found in self._computations().items() if isinstance(found, Plan)}

    def _computations(self) -> Mapping[str, Computation]:
        module, _, attribute = self.operations.partition(":")
        found: Mapping[str, Computation] = getattr(importlib.import_module(module), attribute)
        return found

    def cache_environment(self) -> dict[str, str]:
        """The worker's environment variables for caches of compiled code: in the home, or where they are set already.

        Numba's cache is in a subdirectory named by `kernels.fingerprint` in either case. Our kernels' cache needs none,
        since each entry's key covers all it is made from. Nor does CuPy's, which holds CuPy's code around cuBLAS.
        """
        chosen = os.environ.get("NUMBA_CACHE_DIR")
        numba = Path(chosen) if chosen else self.home / "cache" / "numba"
        if fingerprint() not in numba.parts:  # it is in the path already if another process of ours set it
            numba /= fingerprint()
        places = {"NUMBA_CACHE_DIR": str(numba)}
        for name, folder in (("WARPDESK_KERNEL_CACHE", "kernels"), ("CUPY_CACHE_DIR", "cupy")):
            if not os.environ.get(name):
                places[name] = str(self.home / "cache" / folder)
        return places
