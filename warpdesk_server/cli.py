"""The command line: run a service or a worker, send a job, look at the machine and measure it, manage API keys."""

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warpdesk_server.benchmarks import options

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from pydantic_settings import BaseSettings
    from warpdesk.client import Client, Job, WarpdeskError

    from warpdesk_server.app.access.audit import Audit, Deed
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.doctor.check import Findings

S = TypeVar("S", bound="BaseSettings")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

INTERRUPTED = 130  # the exit code of what Ctrl-C ended, as shells count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    chosen = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # httpx reports each request at this level.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    command: Callable[[argparse.Namespace], int] = chosen.run
    try:
        return command(chosen)
    except Misconfigured as error:
        _fail(str(error))
        return 2


class Misconfigured(Exception):
    """An environment variable of ours holds what cannot be used, or options contradict each other; the message says."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="warpdesk", description="A self-hosted GPU compute service.")
    parser.add_argument("--version", action="version", version=f"warpdesk {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run the API, a worker per device, and Redis where none is configured")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument(
        "--port", type=_port, default=8000, help="port to listen on, 0 for a free one (default: %(default)s)"
    )
    serve.add_argument("--no-worker", action="store_true", help="the API alone; workers run elsewhere")
    serve.add_argument("--workers", type=_positive, metavar="N", help="how many workers (default: one per device)")
    serve.set_defaults(run=_serve)

    worker = commands.add_parser("worker", help="run one worker for the Redis of WARPDESK_REDIS_URL")
    worker.add_argument(
        "--idle-exit", type=_seconds, metavar="SECONDS", help="end after so long without a job (default: never)"
    )
    worker.add_argument(
        "--max-seconds",
        type=_seconds,
        metavar="SECONDS",
        help="take no job after so long, and end when the last one is done or given back (default: never)",
    )
    worker.set_defaults(run=_worker)

    submit = commands.add_parser(
        "submit",
        help="send one job, wait, print the answer",
        description="Send one job, wait for it and print the answer. On a terminal a line shows the job's place in the "
        "queue and its progress. Ctrl-C cancels the job. A job that is not done within --timeout goes on, and its id "
        "is printed.",
    )
    submit.add_argument("operation")
    submit.add_argument("-p", "--param", action="append", default=[], metavar="NAME=VALUE", help="e.g. -p period=14")
    submit.add_argument(
        "-i", "--input", action="append", default=[], metavar="NAME=FILE", help="an .npy file, or file.csv:Column"
    )
    submit.add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    submit.add_argument("--priority", choices=("realtime", "batch", "research"), default="batch")
    submit.add_argument("--seed", type=int)
    submit.add_argument("--deadline", type=float, metavar="SECONDS", help="the job expires if it is not done by then")
    submit.add_argument(
        "--idempotency-key",
        metavar="TEXT",
        help="the same command with the same text gets the same job, for a day; for ever if a budget is charged",
    )
    submit.add_argument("--timeout", type=float, metavar="SECONDS", help="how long to wait (default: until it is done)")
    submit.add_argument("--url", help="the service (default: WARPDESK_URL or http://127.0.0.1:8000)")
    submit.add_argument("--json", action="store_true", help="print all numbers as JSON")
    submit.set_defaults(run=_submit)

    doctor = commands.add_parser("doctor", help="look at the machine, GPU and kernels, and say what would mend what")
    doctor.add_argument("--quick", action="store_true", help="leave out what compiles: registers, examples")
    doctor.add_argument(
        "--arch", type=_architecture, metavar="SM", help="show the kernels on this architecture, e.g. sm_90"
    )
    doctor.add_argument(
        "--calibrate", action="store_true", help="measure what operations take on GPU and CPU, for backend auto"
    )
    doctor.add_argument(
        "--join", action="store_true", help="look only whether a worker here could join the service its settings name"
    )
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)

    health = commands.add_parser(
        "health",
        help="exit with 0 where a service, or a worker of this host, is alive, else with 1",
        description="Ask once, say one sentence, and exit with 0 or 1, as the health check of a container wants it.",
    )
    health.add_argument("--url", help="the service (default: WARPDESK_URL or http://127.0.0.1:8000)")
    health.add_argument("--ready", action="store_true", help="whether it can run jobs, not only whether it is alive")
    health.add_argument(
        "--worker", action="store_true", help="whether a worker of this host reported lately to WARPDESK_REDIS_URL"
    )
    health.set_defaults(run=_health)

    warm = commands.add_parser("warm", help="compile kernels and CPU code now, not when the first worker starts")
    warm.add_argument("--arch", nargs="+", type=_architecture, metavar="SM", help="e.g. sm_90 (default: the GPUs here)")
    warm.add_argument("--all", action="store_true", help="every architecture that is supported; needs no GPU")
    warm.add_argument("--kernels-only", action="store_true", help="leave out the CPU code")
    warm.add_argument("--json", action="store_true")
    warm.set_defaults(run=_warm)

    bench = commands.add_parser("bench", help="measure every operation beside named libraries, on this machine")
    options.add(bench)
    bench.set_defaults(run=_bench)

    keys = commands.add_parser("keys", help="create, list, rotate or revoke keys, or serve without").add_subparsers(
        required=True, metavar="ACTION"
    )
    create = keys.add_parser("create", help="create a key and print it, once")
    create.add_argument("name", help="whose it is")
    create.add_argument(
        "--scopes",
        default="submit,read,cancel",
        help="of submit, realtime (to submit with that priority), read, cancel, metrics (what the service does for "
        "all keys), admin (all of these and more); or worker alone (default: %(default)s)",
    )
    create.set_defaults(run=_create_key)
    keys.add_parser("list", help="list the keys").set_defaults(run=_list_keys)
    rotate = keys.add_parser(
        "rotate",
        help="give a key a new token and print it, once",
        description="The key keeps its id, so its jobs, arrays, rounds and charges stay its own. Until the overlap is "
        "over both tokens are taken. A running service knows the new one at once.",
    )
    rotate.add_argument("id", help="the first column of `warpdesk keys list`")
    rotate.add_argument(
        "--overlap",
        type=_duration,
        default="24h",
        metavar="TIME",
        help="for how long the tokens before are taken: 90s, 30m, 24h, 7d, 0s (default: %(default)s)",
    )
    rotate.set_defaults(run=_rotate_key)
    ledger = keys.add_parser(
        "rotate-ledger",
        help="give the ledger a new key and wrap the seeds of open charges with it",
        description="The key file becomes a ring: the newest key wraps, those before it still open, the first one keys "
        "digests for ever. Processes that run read the file again by themselves. Where other hosts have a copy, make "
        "the ring with --to, copy it to the workers' hosts, then to the API's, then run --rewrap.",
    )
    how = ledger.add_mutually_exclusive_group()
    how.add_argument("--to", type=Path, metavar="FILE", help="write the new ring there, and change nothing")
    how.add_argument("--rewrap", action="store_true", help="make no key, wrap what is open with the newest")
    ledger.set_defaults(run=_rotate_ledger)
    accept = commands.add_parser("ledger", help="manage the ledger of privacy budgets").add_subparsers(
        required=True, metavar="ACTION"
    )
    accept.add_parser(
        "accept",
        help="go on with a ledger that was restored from a copy, or lost",
        description="A service refuses a ledger whose database is missing, older than its anchor or another one. This "
        "command takes the database as it is. Every budget that may have been charged since is closed for ever, and is "
        "listed, in the audit log before anything is done. Stop the service before.",
    ).set_defaults(run=_accept_ledger)
    revoke = keys.add_parser("revoke", help="revoke a key with all its tokens")
    revoke.add_argument("id", help="the first column of `warpdesk keys list`")
    revoke.set_defaults(run=_revoke_key)
    keys.add_parser(
        "open",
        help="let the service start without keys again",
        description="A service that ever had keys does not start without its key file. This removes a key file "
        "that has no key left, and the note that there were keys. From the next start whoever connects from this "
        "machine as the service's user is admin.",
    ).set_defaults(run=_open_service)
    return parser


def _serve(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.service.serve import CannotServe, Options, serve
    from warpdesk_server.workers import logs
    from warpdesk_server.workers.settings import WorkerSettings

    _read(WorkerSettings)  # before a worker of this service finds out
    settings = _read(Settings)
    if settings.redis_url:  # else the service starts one
        _names_a_redis(settings.redis_url)
    logs.configure(settings.log_format)

    options = Options(chosen.host, chosen.port, not chosen.no_worker, chosen.workers)
    try:
        serve(options, settings, lambda text: print(text, flush=True))
    except CannotServe as error:
        return _fail(str(error))
    return 0


def _worker(chosen: argparse.Namespace) -> int:
    # The worker replaces this process: what supervises it sees its exit code and sends it signals.
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.service.processes import module
    from warpdesk_server.workers.settings import WorkerSettings

    limits = {"WARPDESK_IDLE_EXIT_SECONDS": chosen.idle_exit, "WARPDESK_MAX_SECONDS": chosen.max_seconds}
    os.environ.update({name: str(value) for name, value in limits.items() if value is not None})
    settings = _read(WorkerSettings)
    _names_a_redis(settings.redis_url)
    try:
        make_private(settings.home)
    except UnusableHome as error:
        raise Misconfigured(str(error)) from None
    command, needed = module("warpdesk_server.workers.parent.main")
    os.execve(command[0], command, {**os.environ, **needed})  # noqa: S606


def _submit(chosen: argparse.Namespace) -> int:
    import numpy as np
    from warpdesk.client import Client, ProgressBar, Unreachable, WarpdeskError

    try:
        words = _named("-p", chosen.param, "NAME=VALUE, for example period=14")
        places = _named("-i", chosen.input, "NAME=FILE, for example prices=prices.csv:Close")
        for name in sorted(words.keys() & places.keys()):
            raise ValueError(f"{name} is given both with -p and with -i")
        files = {name: _file(place) for name, place in places.items()}
        with Client(chosen.url) as client:
            description = client.operations().get(chosen.operation)  # None: the service says that it does not exist
            schemas = description.params.get("properties", {}) if description else {}
            params = {name: typed(text, schemas.get(name, {})) for name, text in words.items()}
            inputs = {
                name: client.upload(file, columns=[column]) if column else np.load(file, allow_pickle=False)
                for name, (file, column) in files.items()
            }
            job = client.submit(
                chosen.operation,
                backend=chosen.backend,
                priority=chosen.priority,
                seed=chosen.seed,
                deadline_s=chosen.deadline,
                idempotency_key=chosen.idempotency_key,
                params=params | inputs,
            )
            try:
                with ProgressBar(place=lambda: client.job(job).queue_position) as bar:
                    result = client.result(job, chosen.timeout, progress=bar if bar.shown else None)
            except KeyboardInterrupt:
                return _canceled(client, job)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Unreachable as error:
        return _fail(f"{error}; is `warpdesk serve` running there? Another address is named by --url or WARPDESK_URL")
    except WarpdeskError as error:
        return _fail(_told(error))
    except (OSError, EOFError, TypeError, ValueError) as error:
        return _fail(str(error))
    outputs = {name: _listed(value) for name, value in result.outputs.items()}
    if chosen.json:
        provenance = result.provenance.model_dump(mode="json")
        print(json.dumps({"job": result.job.id, "outputs": outputs, "provenance": provenance}))
        return 0
    for name, value in result.outputs.items():
        print(f"{name:<20} {in_short(value)}")
    for name, value in result.provenance:
        if value is not None:
            print(f"{name:<20} {value:.4f}" if isinstance(value, float) else f"{name:<20} {value}")
    return 0


def _canceled(client: "Client", job: "Job") -> int:
    """Nobody is left who would read the answer."""
    from warpdesk.client import WarpdeskError

    try:
        told = f"the job {job.id} is {client.cancel(job).status}"
    except WarpdeskError as error:
        told = f"the job {job.id} goes on: {error}"
    print(f"warpdesk: {told}", file=sys.stderr)
    return INTERRUPTED


def in_short(value: Any) -> str:
    """A result in one line: a number as it is, an array by its shape and last numbers."""
    shape = getattr(value, "shape", None)
    if shape:
        last = " ".join(f"{number:.6g}" for number in value.reshape(-1)[-3:])
        return f"{'×'.join(str(length) for length in shape)} {value.dtype}, … {last}"
    if isinstance(value, float):
        return f"{value:.10g}"
    text = value if isinstance(value, str) else json.dumps(_listed(value))
    return text if len(text) <= 100 else f"{text[:99]}…"


def typed(text: str, schema: dict[str, Any]) -> Any:
    """What was typed for a parameter as its JSON Schema wants it: "1" is a number unless only text may stand there."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:  # a bare word
        return text
    if type(value) in (int, float) and _is_amount(schema):
        return text  # it is what was written
    taken = _types(schema)
    return text if "string" in taken and taken.isdisjoint(_names(value)) else value


def _is_amount(schema: dict[str, Any]) -> bool:
    from warpdesk_server.kernels.amount import FORMAT

    return any(part.get("format") == FORMAT for part in (schema, *schema.get("anyOf", ())))


def _types(schema: dict[str, Any]) -> set[str]:
    """The JSON types a schema takes."""
    found = {name for part in schema.get("anyOf", ()) for name in _types(part)}
    if "$ref" in schema:
        found.add("object")  # a model of its own
    if "enum" in schema or "const" in schema:
        return found.union(*(_names(value) for value in schema.get("enum", [schema.get("const")])))
    declared = schema.get("type", ())
    return found | ({declared} if isinstance(declared, str) else set(declared))


def _names(value: Any) -> set[str]:
    """What JSON Schema calls the type of a value."""
    if value is None:
        return {"null"}
    kinds = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, str: {"string"}, list: {"array"}}
    return kinds.get(type(value), {"object"})


def _told(error: "WarpdeskError") -> str:
    """A refusal with each of its places, none twice."""
    places = [f"{place.pointer}: {place.detail}" for place in error.errors]
    about = f"({error.code}, HTTP {error.status})"
    if len(places) == 1 and error.detail == error.errors[0].detail:
        return f"{places[0]} {about}"
    if len(places) > 1:  # the sentence of the service has them in one line
        return "\n  ".join([f"{len(places)} things are wrong {about}", *places])
    return "\n  ".join([str(error), *places])


def _named(option: str, texts: Sequence[str], expected: str) -> dict[str, str]:
    """What was given for each name. Raises ValueError for a text without a name, and for a name given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{option} {text}: expected {expected}")
        if name in found:
            raise ValueError(f"{option} {name} is given twice: {found[name]} and {value}")
        found[name] = value
    return found


def _file(place: str) -> tuple[Path, str]:
    """The file to send, and which column of it if it is a CSV. Raises OSError where it cannot be opened."""
    file, colon, column = place.rpartition(":")
    if not colon or place.endswith(".npy"):
        file, column = place, ""
    path = Path(file)
    if not (path.suffix == ".npy" or (path.suffix == ".csv" and column)):
        raise ValueError(f"-i {place}: expected FILE.npy or FILE.csv:Column")
    path.open("rb").close()  # before the service is asked for anything
    return path, column


def _listed(value: Any) -> Any:
    """A value as the service writes it in JSON: an array as nested lists, NaN as null, an infinity as a string."""
    import numpy as np

    from warpdesk_server.app.arrays.codecs import to_nested

    if isinstance(value, dict):
        return {name: _listed(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_listed(part) for part in value]
    return to_nested(np.asarray(value)) if isinstance(value, float | np.ndarray) else value


def _doctor(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.workers.settings import WorkerSettings

    if chosen.quick and chosen.arch:
        raise Misconfigured("--quick leaves out the kernels, which --arch asks for: give one of the two")
    if chosen.join and (chosen.quick or chosen.arch or chosen.calibrate):
        raise Misconfigured("--join looks at the way to the service, and not at this machine: give it alone")
    worker, settings = _read(WorkerSettings), _read(Settings)  # the machine is looked at as a worker would
    if chosen.join:
        from warpdesk_server.doctor.join import join

        return _findings(join(worker, settings), chosen.json)
    with suppress(UnusableHome):  # the findings tell
        if not chosen.quick:
            make_private(worker.home)
    with tempfile.TemporaryDirectory(prefix="warpdesk-") as nowhere:
        places = worker.cache_environment()
        if not worker.home.is_dir():
            places["NUMBA_CACHE_DIR"] = os.environ.get("NUMBA_CACHE_DIR") or nowhere
        os.environ.update(places)  # before Numba is imported
        from warpdesk_server.doctor import Wish, examine

        with _quiet():
            findings = examine(worker, settings, Wish(chosen.quick, chosen.arch, chosen.calibrate))
    return _findings(findings, chosen.json)


def _findings(findings: "Findings", as_json: bool) -> int:
    print(json.dumps(findings.as_json()) if as_json else findings.as_text())
    return 0 if findings.healthy else 1


def _health(chosen: argparse.Namespace) -> int:
    from warpdesk_server.service.health import of_service, of_workers
    from warpdesk_server.workers.settings import WorkerSettings

    if chosen.worker and (chosen.url or chosen.ready):
        raise Misconfigured("--worker asks Redis, --url and --ready ask the service: give one of the two")
    try:
        if chosen.worker:
            found = of_workers(_read(WorkerSettings).redis_url)
        else:
            found = of_service(chosen.url or os.environ.get("WARPDESK_URL") or "http://127.0.0.1:8000", chosen.ready)
    except ValueError as error:
        raise Misconfigured(str(error)) from None
    if not found.healthy:
        return _fail(found.sentence)
    print(found.sentence)
    return 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what a worker would log: it is among the findings."""
    log = logging.getLogger("warpdesk")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _warm(chosen: argparse.Namespace) -> int:
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.workers.settings import WorkerSettings

    settings = _read(WorkerSettings)
    os.environ.update(settings.cache_environment())  # before Numba is imported
    from warpdesk_server.kernels.gpu import nvrtc
    from warpdesk_server.kernels.gpu.cubins import Cubins, default_directory
    from warpdesk_server.precompile import architectures_here, known, warm

    try:
        make_private(settings.home)
        wanted = chosen.arch or ([] if settings.device == "cpu" else architectures_here(settings))
        cubins = Cubins(default_directory(), nvrtc.find()) if wanted or chosen.all else None
        if cubins is not None and chosen.all:
            wanted = sorted({*wanted, *known(cubins)}, key=lambda name: int(name[3:]))
        if cubins is not None and (unknown := sorted({*wanted} - {*(made := cubins.compiler.architectures())})):
            return _fail(f"no code for {', '.join(unknown)}: NVRTC {cubins.compiler.version} knows {', '.join(made)}")
        warmed = warm(cubins, wanted, not chosen.kernels_only)
    except UnusableHome as error:
        raise Misconfigured(str(error)) from None
    except nvrtc.CompileError as error:
        return _fail(f"{error}: {error.remedy}" if error.remedy else str(error))
    except OSError as error:
        return _fail(f"compiled kernels cannot be kept: {error}; set WARPDESK_KERNEL_CACHE to a directory of yours")
    print(json.dumps(warmed.as_json()) if chosen.json else warmed.as_text())
    return 0 if warmed.complete else 1


def _bench(chosen: argparse.Namespace) -> int:
    from warpdesk_server.service.home import UnusableHome, make_private
    from warpdesk_server.workers.settings import WorkerSettings

    settings = _read(WorkerSettings)
    try:
        make_private(settings.home)
    except UnusableHome as error:
        raise Misconfigured(str(error)) from None
    os.environ.update(settings.cache_environment())  # before Numba is imported
    from warpdesk_server.benchmarks.operations import bench

    return bench(chosen)


def _create_key(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.auth import create_key
    from warpdesk_server.app.settings import Settings

    settings = _read(Settings)

    def create(deed: "Deed") -> str:
        token = create_key(settings.home, chosen.name, chosen.scopes.split(","), file=settings.keys_path)
        deed.target = token.split("_")[1]
        return token

    return _show_token(settings, f"keys create {chosen.scopes}", None, create)


def _rotate_key(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.auth import rotate_key
    from warpdesk_server.app.settings import Settings

    settings = _read(Settings)
    action = f"keys rotate --overlap {chosen.overlap:g}s"
    return _show_token(settings, action, chosen.id, lambda _: rotate_key(settings.keys_path, chosen.id, chosen.overlap))


def _show_token(settings: "Settings", action: str, target: str | None, make: "Callable[[Deed], str]") -> int:
    from warpdesk_server.app.access.audit import Audit, AuditUnavailable, Deed, user
    from warpdesk_server.app.access.auth import UnknownKey, UnusableKeys

    try:
        with _audit(settings, Audit).of(Deed(user(), action, target)) as deed:
            token = make(deed)
    except (AuditUnavailable, UnusableKeys, UnknownKey, ValueError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_not_written(error))
    print(token)
    print("Keep it: it is stored as a hash and shown only now. Send it as `Authorization: Bearer …`.", file=sys.stderr)
    return 0


def _not_written(error: OSError) -> str:
    return f"{error.filename or 'a file'} cannot be used: {error.strerror}"


def _audit(settings: "Settings", audit: "Callable[[Path], Audit]") -> "Audit":
    """The log, for somebody whose files the service can read. Raises Misconfigured."""
    if os.geteuid() == 0 and settings.home.exists() and (owner := settings.home.stat().st_uid) != 0:
        raise Misconfigured(
            f"{settings.home} belongs to the user {owner}, who could not read what root writes there: run this as that "
            f"user (setpriv --reuid {owner} --regid {owner} --clear-groups warpdesk ...)"
        )
    settings.audit_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return audit(settings.audit_path)


def _list_keys(_: argparse.Namespace) -> int:
    from warpdesk_server.app.access.auth import UnusableKeys, read_keys
    from warpdesk_server.app.settings import Settings

    try:
        keys = read_keys(_read(Settings).keys_path)
    except UnusableKeys as error:
        return _fail(str(error))
    for key in keys.values():
        created = datetime.fromtimestamp(key.created_at, UTC)
        print(f"{key.id}  {created:%Y-%m-%d}  {','.join(key.scopes):<20}  {key.name}")
        for one in key.earlier:
            until = datetime.fromtimestamp(one.expires_at, UTC)
            ends = "expires" if one.expires_at > time.time() else "expired"
            print(f"{'':<12}  an earlier token {ends} {until:%Y-%m-%d %H:%M} UTC")
    return 0


def _revoke_key(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import Audit, AuditUnavailable, Deed, user
    from warpdesk_server.app.access.auth import UnknownKey, UnusableKeys, revoke_key
    from warpdesk_server.app.settings import Settings

    settings = _read(Settings)
    try:
        with _audit(settings, Audit).of(Deed(user(), "keys revoke", chosen.id)):
            if not revoke_key(settings.keys_path, chosen.id):
                raise UnknownKey(f"there is no key {chosen.id}")
    except (AuditUnavailable, UnusableKeys, UnknownKey) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_not_written(error))
    return 0


def _open_service(_: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import Audit, AuditUnavailable, Deed, user
    from warpdesk_server.app.access.auth import UnusableKeys, serve_without_keys
    from warpdesk_server.app.settings import Settings

    settings = _read(Settings)
    try:
        with _audit(settings, Audit).of(Deed(user(), "keys open", str(settings.keys_path))):
            serve_without_keys(settings.keys_path, settings.home)
    except (AuditUnavailable, UnusableKeys) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_not_written(error))
    print("From its next start the service serves its own user on this machine, and nobody else, without keys")
    return 0


def _accept_ledger(_: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import Audit, AuditUnavailable, Deed, user
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.privacy.ledger import LedgerBehind
    from warpdesk_server.privacy.opening import LEDGER_ERRORS, accept_database, examine

    settings = _read(Settings)
    place, who = settings.ledger_place, user()
    deed = Deed(who, "ledger accept", None)

    def begin(closed: list[str]) -> None:
        deed.target = ",".join(closed) or None
        _audit(settings, Audit).begin(deed)

    try:
        with suppress(LedgerBehind):
            if (books := examine(place)) is None:
                print(f"there is no ledger in {settings.home} yet: there is nothing to accept")
                return 0
            books.dispose()
            print("the ledger fits its anchor: there is nothing to accept")
            return 0
        closed = accept_database(place, f"user {who.get('user', who['uid'])}", begin)
        _audit(settings, Audit).end(deed, "succeeded")
    except (AuditUnavailable, *LEDGER_ERRORS) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_not_written(error))
    for budget in closed:
        print(f"{budget} is closed")
    print(f"the ledger's database is accepted as it is; {len(closed)} budgets were closed")
    return 0


def _rotate_ledger(chosen: argparse.Namespace) -> int:
    from warpdesk_server.app.access.audit import Audit, AuditUnavailable, Deed, user
    from warpdesk_server.app.settings import Settings
    from warpdesk_server.privacy.opening import LEDGER_ERRORS, open_ledger
    from warpdesk_server.privacy.seeds import Ring

    settings = _read(Settings)
    path = settings.ledger_key_path
    try:
        if not path.exists():
            return _fail(f"there is no key {path}: the service makes one at its first start")
        ring = Ring(path)
        if chosen.to is not None:
            if os.path.lexists(chosen.to):
                return _fail(f"{chosen.to} exists: the new keys are written to a new file, and none is replaced")
            with _audit(settings, Audit).of(Deed(user(), "keys rotate-ledger --to", str(chosen.to))):
                ring.grow(chosen.to, forget=False)
            print(f"{chosen.to} has a new key: copy it to {path} of the workers' hosts first, then of the API's")
            return 0
        books = open_ledger(settings.ledger_place)
        try:
            with _audit(settings, Audit).of(Deed(user(), "keys rotate-ledger", str(path))):
                wrapped = books.rewrap()  # after it no seed needs a key but the first and the newest
                if not chosen.rewrap:
                    ring.grow(path, forget=True)
                    wrapped = books.rewrap()
        finally:
            books.dispose()
    except (AuditUnavailable, *LEDGER_ERRORS) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_not_written(error))
    print(f"{wrapped} seeds of open charges are wrapped with the newest key of {path}")
    return 0


def _read(settings: type[S]) -> S:
    """The settings of the environment. Raises Misconfigured."""
    from pydantic import ValidationError

    try:
        return settings()
    except ValidationError as error:
        wrong = (
            _wrong(entry, settings.model_config.get("env_prefix", "")) for entry in error.errors(include_url=False)
        )
        raise Misconfigured("; ".join(wrong)) from None


def _names_a_redis(url: str) -> None:
    """Raises Misconfigured without any of the URL, unlike the traceback of one that cannot be read."""
    from redis.connection import parse_url

    try:
        parse_url(url)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise Misconfigured(
            "WARPDESK_REDIS_URL is not one such as redis://user:password@host:6379/0; in a password /, #, ? and @ are "
            "written %2F, %23, %3F and %40"
        ) from None


def _wrong(entry: "ErrorDetails", prefix: str) -> str:
    """One thing that is wrong with the environment. What several variables say together names them itself, and its
    input, all that is set, holds secrets."""
    if not entry["loc"]:
        return entry["msg"].removeprefix("Value error, ")
    return (
        f"{prefix}{entry['loc'][0]}".upper() + f" is {entry['input']!r}: {entry['msg'][:1].lower()}{entry['msg'][1:]}"
    )


def _duration(text: str) -> float:
    """Seconds."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS or int(number) * _UNITS[unit] > 366 * _UNITS["d"]:
        raise argparse.ArgumentTypeError(f"{text!r} is no time of a year at most, such as 90s, 30m, 24h or 7d")
    return float(int(number) * _UNITS[unit])


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: ports are 0 to 65535, and 0 takes a free one")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _architecture(text: str) -> str:
    from warpdesk_server.precompile import named

    try:
        return named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers")
    return int(text)


def _fail(sentence: str) -> int:
    print(f"warpdesk: {sentence}", file=sys.stderr)
    return 1


def _version() -> str:
    try:
        return version("warpdesk")
    except PackageNotFoundError:  # run from the sources
        return "(not installed)"


if __name__ == "__main__":
    raise SystemExit(main())
