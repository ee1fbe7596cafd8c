"""What the API process can be told, each value as an environment variable `WARPDESK_<NAME>`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from warpdesk_server.privacy.opening import Place
from warpdesk_server.workers.logs import LogFormat, LogLevel
from warpdesk_server.workers.settings import Durability, SecretsOfFiles, default_home, ledger_in

MIB = 1 << 20
GIB = 1 << 30
DAY = 86_400.0


class Settings(SecretsOfFiles):
    """The API's settings: sizes in bytes, times in seconds."""

    model_config = SettingsConfigDict(env_prefix="WARPDESK_", extra="ignore", frozen=True, hide_input_in_errors=True)

    home: Path = Field(default_factory=default_home)
    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_server: Path | None = None  # the program that `warpdesk serve` starts where redis_url is not set
    redis_patience: Annotated[float, Field(gt=0)] = 1.0  # longest wait for Redis before a request answers 503
    store: Path | None = None  # the spool directory, <home>/store when unset
    durability: Durability = "always"
    replicas: Annotated[int, Field(ge=1)] = 1  # of Redis, that must have a change on the disk: durability "replicated"
    keys_file: Path | None = None  # <home>/keys.json when unset
    # Where budgets and rounds are kept, <home>/ledger.db when unset: sqlite:////path or postgresql://user@host/name.
    ledger_url: SecretStr = SecretStr("")
    ledger_key_file: Path | None = None  # <home>/ledger.key when unset: what noise seeds are wrapped with
    # Where the heads of all chains are noted, so that an older ledger is noticed; <home>/ledger.anchor when unset.
    # Of a ledger in PostgreSQL another database there, which all API hosts share.
    ledger_anchor_url: SecretStr = SecretStr("")
    ledger_every: Annotated[float, Field(gt=0)] = 5.0  # how often it is looked for charged jobs that got lost or ended
    audit_file: Path | None = None  # <home>/audit.jsonl when unset: what admins did
    host: str = "127.0.0.1"  # what the server is bound to: without keys it must be a loopback address

    max_body: int = 4 * MIB  # JSON; 64 Ki numbers of 25 characters are 1.6 MiB
    max_csv: int = 16 * MIB  # parsing holds a processor for some seconds; an .npy of any size does not
    max_buffered_per_key: int = 64 * MIB  # JSON and CSV of one key on their way in or being parsed
    max_buffered: int = 192 * MIB  # of all keys
    max_array: int = 1 * GIB
    max_inline_numbers: int = 65_536
    max_result_numbers: int = 100_000  # an output with more comes as an array id
    max_job_bytes: int = 4 * GIB
    max_queue: int = 10_000
    max_live_jobs: Annotated[int, Field(ge=1)] = 5000  # of one key, queued or running
    max_live_tasks: Annotated[int, Field(ge=0)] = 4  # of one key, paused ones too
    max_redis_memory: Annotated[float, Field(gt=0, le=1)] = 0.8  # of its maxmemory; beyond it no new job is taken
    submissions_per_second: Annotated[float, Field(gt=0)] = 1000.0  # jobs and uploads of one key, in each API process
    submission_burst: Annotated[int, Field(ge=1)] = 2000
    requests_per_second: Annotated[float, Field(gt=0)] = 2000.0  # of one key (but workers') or member of a round
    request_burst: Annotated[int, Field(ge=1)] = 4000
    failed_logins_per_second: Annotated[float, Field(gt=0)] = 20.0  # requests without a valid key, of one address
    failed_login_burst: Annotated[int, Field(ge=1)] = 200
    max_connections: Annotated[int, Field(ge=1)] = 10_000  # of each API process, and below its limit of open files
    max_connections_per_address: Annotated[int, Field(ge=1)] = 1000  # but of a proxy's (FORWARDED_ALLOW_IPS)
    max_requests_per_key: Annotated[int, Field(ge=1)] = 1000  # under way at once, in each API process
    # Above the 60 s of most proxies: who sends must not find a connection gone.
    idle_seconds: Annotated[float, Field(gt=0)] = 75.0  # until a connection on which nothing comes is closed
    head_seconds: Annotated[float, Field(gt=0)] = 20.0  # from a head's first byte to its end
    body_rate: Annotated[int, Field(gt=0)] = 16 * 1024  # bytes a second of a body on its way in, at the least
    body_seconds: Annotated[float, Field(gt=0)] = 20.0  # so far may a body fall behind that rate
    max_wait: int = 55  # below the 60 seconds after which most proxies give up
    max_waits: Annotated[int, Field(ge=1)] = 100  # `Prefer: wait` of one key at once, in each API process
    max_streams: Annotated[int, Field(ge=1)] = 100  # event streams, the same; of all keys 20 times as many
    event_comment_seconds: Annotated[float, Field(gt=0)] = 15.0  # an event stream says something at least so often

    max_live_rounds: Annotated[int, Field(ge=1)] = 100  # of one key
    max_round_bytes: int = 16 * GIB  # masked vectors of all live rounds
    max_round_bytes_per_key: int | None = None  # of one key's live rounds, a quarter of all when unset

    max_datasets: Annotated[int, Field(ge=0)] = 100  # of one key

    # Arrays, datasets and results of one key and of all, half of that and four fifths of the disk when unset.
    max_stored_bytes_per_key: Annotated[int, Field(ge=0)] | None = None
    max_stored_bytes: Annotated[int, Field(ge=0)] | None = None
    # Of the store's disk, for Redis, the ledger and the audit log: see workers.store.disk.reserve.
    kept_free_bytes: Annotated[int, Field(ge=0)] | None = None

    array_ttl: float = DAY
    inline_ttl: float = 3600.0  # a live job keeps its inputs beyond this
    result_ttl: float = DAY
    job_timeout: float = 600.0  # one attempt
    # Inputs of a job in its body are kept in Redis until it has ended, if they have no more bytes together. 0: never.
    max_attached_bytes: Annotated[int, Field(ge=0)] = 16 * 1024
    # Jobs that would take one core longer than about this, by `kernels.operation.Cost.core_seconds`, are long: they
    # run in a process of their own, at the machine's lowest priority, so that no other job waits for them.
    long_seconds: Annotated[float, Field(ge=0)] = 0.5
    sweep_every: float = 60.0

    log_level: LogLevel = "warning"  # "info": a line for each request
    log_format: LogFormat = "text"

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # a private port for /metrics without a key

    @property
    def buffered_per_key(self) -> int:
        """The bytes of bodies that the API buffers for a key: at least the largest body. A limit that no caller can
        keep would refuse it for ever."""
        return max(self.max_buffered_per_key, self.max_body, self.max_csv)

    @property
    def buffered_in_all(self) -> int:
        return max(self.max_buffered, self.buffered_per_key)

    @property
    def round_bytes_per_key(self) -> int:
        chosen = self.max_round_bytes_per_key
        return self.max_round_bytes // 4 if chosen is None else chosen

    @property
    def store_directory(self) -> Path:
        return self.store or self.home / "store"

    @property
    def keys_path(self) -> Path:
        return self.keys_file or self.home / "keys.json"

    @property
    def audit_path(self) -> Path:
        return self.audit_file or self.home / "audit.jsonl"

    @property
    def ledger(self) -> str:
        return self.ledger_url.get_secret_value() or ledger_in(self.home)

    @property
    def ledger_key_path(self) -> Path:
        return self.ledger_key_file or self.home / "ledger.key"

    @property
    def ledger_place(self) -> Place:
        anchor = self.ledger_anchor_url.get_secret_value() or f"sqlite:///{self.home.absolute()}/ledger.anchor"
        return Place(self.ledger, anchor, self.ledger_key_path, self.home / "ledger-existed")
