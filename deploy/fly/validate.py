"""Check a fly.toml more strictly than `fly config validate`, without an account: python deploy/fly/validate.py FILE...

`fly config validate` passes over keys and sections that it does not know, and fly.io refuses some that it knows (GPUs).
Prints a sentence for each mistake; the exit code is 1 if there is one. The keys are those of flyctl of 2026-08-21
(internal/appconfig); what Warpdesk itself needs is checked where a process group runs it.
"""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

LONGEST_KILL_TIMEOUT = 300.0  # seconds, fly.io's own limit
SERVE_GRACE = (
    5.0  # seconds that `warpdesk serve` gives its children beyond the drain (warpdesk_server/service/serve.py)
)
DEFAULT_DRAIN = 20.0  # seconds, of workers/settings.py

_TEXT, _NUMBER, _FLAG, _TEXTS, _DURATION = "text", "a number", "true or false", "a list of text", "a duration"
_MEMORY, _SIGNAL, _ANY = "an amount of memory", "a signal", "anything"
_STRINGS = "a table of strings"
_HTTP_CHECK = {
    "interval": _DURATION, "timeout": _DURATION, "grace_period": _DURATION, "method": _TEXT, "path": _TEXT,
    "protocol": ("http", "https"), "headers": _STRINGS, "tls_skip_verify": _FLAG, "tls_server_name": _TEXT,
}  # fmt: skip
_MACHINE_CHECK = {
    "command": _TEXTS, "image": _TEXT, "entrypoint": _TEXTS, "kill_signal": _SIGNAL, "kill_timeout": _DURATION,
}  # fmt: skip
_CONCURRENCY = {"type": ("requests", "connections"), "soft_limit": _NUMBER, "hard_limit": _NUMBER}
_AUTO = {
    "auto_stop_machines": ("off", "stop", "suspend"), "auto_start_machines": _FLAG, "min_machines_running": _NUMBER,
    "processes": _TEXTS, "internal_port": _NUMBER, "concurrency": _CONCURRENCY, "machine_checks": [_MACHINE_CHECK],
}  # fmt: skip
_VM = {
    "size": _TEXT, "memory": _MEMORY, "memory_mb": _NUMBER, "max_memory_mb": _NUMBER, "cpus": _NUMBER,
    "cpu_kind": ("shared", "performance"), "host_dedication_id": _TEXT, "persist_rootfs": _TEXT,
    "kernel_args": _TEXTS, "processes": _TEXTS,
}  # fmt: skip
_PORT = {
    "port": _NUMBER, "start_port": _NUMBER, "end_port": _NUMBER, "handlers": _TEXTS, "force_https": _FLAG,
    "tls_options": _ANY, "http_options": _ANY, "proxy_proto_options": _ANY,
}  # fmt: skip
SCHEMA: Mapping[str, Any] = {
    "app": _TEXT, "primary_region": _TEXT, "kill_signal": _SIGNAL, "kill_timeout": _DURATION, "swap_size_mb": _NUMBER,
    "console_command": _TEXT, "host_dedication_id": _TEXT, "machine_config": _ANY, "container": _TEXT,
    "experimental": _ANY, "env": _STRINGS, "processes": _STRINGS,
    "build": {
        "dockerfile": _TEXT, "build-target": _TEXT, "args": _STRINGS, "image": _TEXT, "ignorefile": _TEXT,
        "builder": _TEXT, "buildpacks": _TEXTS, "builtin": _TEXT, "compression": _TEXT, "compression_level": _NUMBER,
    },
    "deploy": {
        "strategy": ("rolling", "immediate", "canary", "bluegreen"), "max_unavailable": _NUMBER,
        "wait_timeout": _DURATION, "release_command": _TEXT, "release_command_timeout": _DURATION,
        "release_command_vm": _VM, "seed_command": _TEXT,
    },
    "http_service": {
        **_AUTO, "force_https": _FLAG, "checks": [_HTTP_CHECK], "tls_options": _ANY, "http_options": _ANY,
    },
    "services": [
        {
            **_AUTO, "protocol": ("tcp", "udp"), "ports": [_PORT], "http_checks": [_HTTP_CHECK],
            "tcp_checks": [{"interval": _DURATION, "timeout": _DURATION, "grace_period": _DURATION}],
        }
    ],
    "mounts": [
        {
            "source": _TEXT, "destination": _TEXT, "initial_size": _TEXT, "snapshot_retention": _NUMBER,
            "scheduled_snapshots": _FLAG, "auto_extend_size_threshold": _NUMBER, "auto_extend_size_increment": _TEXT,
            "auto_extend_size_limit": _TEXT, "processes": _TEXTS,
        }
    ],
    "files": [
        {"guest_path": _TEXT, "local_path": _TEXT, "secret_name": _TEXT, "raw_value": _TEXT, "processes": _TEXTS}
    ],
    "machine_checks": [_MACHINE_CHECK],
    "restart": [{"policy": ("always", "never", "on-failure"), "retries": _NUMBER, "processes": _TEXTS}],
    "vm": [_VM],
    "statics": [{"guest_path": _TEXT, "url_prefix": _TEXT, "tigris_bucket": _TEXT, "index_document": _TEXT}],
    "metrics": [{"port": _NUMBER, "path": _TEXT, "https": _FLAG, "processes": _TEXTS}],
}  # fmt: skip
CHECK = {**_HTTP_CHECK, "type": ("http", "tcp"), "port": _NUMBER, "processes": _TEXTS}  # of [checks.NAME]

_NO_GPU = "fly.io has had no GPU machines since 2026-08-01; GPU workers join from elsewhere"
# What was there once or is written in posts, and what to do instead.
REMOVED = {
    "vm.gpu_kind": _NO_GPU,
    "vm.gpus": _NO_GPU,
    "gpu": _NO_GPU,
    "autoscaling": "autoscaling is an app of its own: deploy/fly/autoscaler",
    "scale": "the number of machines is set by `fly scale count`",
    "regions": "machines are put into regions by `fly scale count --region`",
    "health_check": "checks are [[http_service.checks]] or [checks.NAME]",
    "redis": "a Redis is a secret URL, and no section",
}
_SIZE = re.compile(r"(shared-cpu-[1248]x|performance-(1|2|4|8|16)x)")
_DURATION_TEXT = re.compile(r"(\d+)(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def mistakes(text: str) -> list[str]:
    """A sentence for each, in the order of the file's sections; none if it is right."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [f"it is not TOML: {error}"]
    return [*_keys(document), *(_groups(document) if not list(_keys(document)) else [])]


def seconds(value: object) -> float:
    """Of a duration as fly.io writes them: "90s", "2m", or a number of seconds. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str) or not (found := _DURATION_TEXT.fullmatch(value)):
        raise ValueError(f'{value!r} is not a duration such as "90s"')
    return float(found[1]) * _UNITS[found[2] or "s"]


def _keys(document: Mapping[str, Any]) -> Iterator[str]:
    """Unknown keys, removed ones, and values of another kind."""
    checks = document.get("checks", {})
    for name, check in checks.items() if isinstance(checks, Mapping) else ():
        yield from _table(f"checks.{name}", check, CHECK)
    yield from _table("", {name: value for name, value in document.items() if name != "checks"}, SCHEMA)


def _table(path: str, value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"[{path}] is a table, and not {value!r}"
        return
    for name, part in value.items():
        at = f"{path}.{name}" if path else name
        if at in REMOVED:
            yield f"{at} does not exist: {REMOVED[at]}"
        elif name not in schema:
            yield f"{at} is unknown to fly.io: it would be passed over without a word"
        else:
            yield from _value(at, part, schema[name])


def _value(at: str, value: Any, wanted: Any) -> Iterator[str]:
    if isinstance(wanted, Mapping):
        yield from _table(at, value, wanted)
    elif isinstance(wanted, list):  # one table may stand for a list of one
        for part in value if isinstance(value, list) else [value]:
            yield from _table(at, part, wanted[0])
    elif isinstance(wanted, tuple):
        if value not in wanted:
            yield f"{at} is {value!r}, and can be {', '.join(wanted)}"
    elif wanted == _STRINGS:
        yield from _strings(at, value)
    elif not _is(value, wanted):
        yield f"{at} is {value!r}, and not {wanted}"


def _is(value: Any, wanted: str) -> bool:
    if wanted == _DURATION:
        try:
            return seconds(value) >= 0
        except ValueError:
            return False
    kinds = {_TEXT: str, _NUMBER: int, _FLAG: bool, _TEXTS: list, _MEMORY: (str, int), _SIGNAL: str, _ANY: object}
    if not isinstance(value, kinds[wanted]) or (isinstance(value, bool) and wanted not in (_FLAG, _ANY)):
        return False
    if wanted == _MEMORY and isinstance(value, str):
        return re.fullmatch(r"\d+ ?(mb|gb)?", value, re.IGNORECASE) is not None
    return wanted != _TEXTS or all(isinstance(part, str) for part in value)


def _strings(at: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"[{at}] is a table, and not {value!r}"
        return
    for name, text in value.items():
        if not isinstance(text, str):
            yield f"{at}.{name} is {text!r}, and environment variables and commands are strings: write it in quotes"
        if at == "env" and name.startswith("FLY_"):
            yield f"{at}.{name}: names that begin with FLY_ are fly.io's own"


def _listed(document: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = document.get(name, [])
    return found if isinstance(found, list) else [found]


def _groups(document: Mapping[str, Any]) -> Iterator[str]:
    """What contradicts itself, or what Warpdesk needs."""
    processes = document.get("processes", {"app": ""})
    placed: dict[str, Sequence[Mapping[str, Any]]] = {
        name: _listed(document, name)
        for name in ("http_service", "services", "mounts", "files", "restart", "vm", "metrics")
    }
    placed["checks"] = list(document.get("checks", {}).values())
    for section, tables in placed.items():
        for table in tables:
            for group in table.get("processes", ()):
                if group not in processes:
                    yield f"{section}.processes names {group}, and the process groups are {', '.join(processes)}"
    for vm in placed["vm"]:
        size = vm.get("size", "shared-cpu-1x")
        if re.match(r"(a10|a100|l40s|h100)", size):
            yield f"vm.size {size} does not exist: {_NO_GPU}"
        elif not _SIZE.fullmatch(size):
            yield f"vm.size {size} is unknown: sizes are shared-cpu-1x to -8x and performance-1x to -16x"
    for check in (check for service in placed["http_service"] for check in service.get("checks", ())):
        if not check.get("path", "").startswith("/"):
            yield "http_service.checks have no path: fly.io would take / for healthy or not"
        if seconds(check.get("timeout", "2s")) >= seconds(check.get("interval", "10s")):
            yield f"a check of {check.get('path')} may take as long as the time between two"
    commands = {group: _command(text) for group, text in processes.items()}
    ours = {group: command for group, command in commands.items() if "warpdesk" in command}
    if ours:
        yield from _stopping(document)
    serving = {group: command for group, command in ours.items() if "serve" in command}
    if serving:
        yield from _serving(document, placed, serving)
    for group in ours:
        if not any(group in vm.get("processes", processes) for vm in placed["vm"]):
            yield f"the process group {group} has no [[vm]]: it would get the smallest"
        policies = [one.get("policy") for one in placed["restart"] if group in one.get("processes", processes)]
        if "--idle-exit" in ours[group] and "on-failure" not in policies:
            yield f"{group} ends by itself when idle, and only with restart policy on-failure it stays stopped then"


def _command(text: str) -> list[str]:
    """The words of a command, those of the script of `sh -c` too. A command that is no shell's is none of ours."""
    try:
        words = shlex.split(text)
        return shlex.split(words[2], comments=True) if words[:2] == ["sh", "-c"] else words
    except (ValueError, IndexError):
        return []


def _stopping(document: Mapping[str, Any]) -> Iterator[str]:
    if document.get("kill_signal") != "SIGTERM":
        yield "kill_signal is not SIGTERM: fly.io's own default is not the same in all its documents, so it is written"
    if "kill_timeout" not in document:
        yield "kill_timeout is not set: after 5 s a worker would be killed in the middle of its job"
        return
    longest = seconds(document["kill_timeout"])
    if longest > LONGEST_KILL_TIMEOUT:
        yield f"kill_timeout is {longest:g} s, and fly.io allows {LONGEST_KILL_TIMEOUT:g} s"
    drain = float(document.get("env", {}).get("WARPDESK_DRAIN_SECONDS", DEFAULT_DRAIN))
    if longest <= drain + SERVE_GRACE:
        yield (
            f"kill_timeout is {longest:g} s, and a worker drains for {drain:g} s (WARPDESK_DRAIN_SECONDS) and wants "
            f"{SERVE_GRACE:g} s more to give its job back"
        )


def _serving(
    document: Mapping[str, Any], placed: Mapping[str, Sequence[Mapping[str, Any]]], serving: Mapping[str, list[str]]
) -> Iterator[str]:
    port, env = document.get("http_service", {}).get("internal_port"), document.get("env", {})
    for group, command in serving.items():
        options = dict(pairwise(command))
        if options.get("--port") != str(port):
            yield f"http_service.internal_port is {port}, and {group} listens on {options.get('--port')}"
        if options.get("--host") != "::":
            host = options.get("--host")
            yield f"{group} listens on {host}: workers come by IPv6 and the proxy by IPv4, `::` is both"
        if not any(group in mount.get("processes", ()) for mount in placed["mounts"]):
            yield f"{group} keeps arrays and keys, and has no volume ([[mounts]])"
    service = document.get("http_service", {})
    if service.get("auto_stop_machines") != "off" or service.get("min_machines_running", 0) < 1:
        yield "http_service may stop the API, by whose metrics workers are started: auto_stop_machines off, one running"
    if not any(one.get("port") == int(env.get("WARPDESK_METRICS_PORT", 0)) for one in placed["metrics"]):
        yield (
            f"no [[metrics]] is at port {env.get('WARPDESK_METRICS_PORT')} (WARPDESK_METRICS_PORT): "
            f"{[one.get('port') for one in placed['metrics']]}"
        )
    for one in placed["metrics"]:
        for group in one.get("processes", document["processes"]):
            if group not in serving:
                yield f"metrics are asked of {group}, and only {', '.join(serving)} serves any"
    for mount in placed["mounts"]:
        for group in mount.get("processes", document["processes"]):
            if group not in serving:
                yield f"{group} has a volume, and workers share nothing by files"


def main(files: Sequence[str]) -> int:
    lines = [f"{file}: {sentence}" for file in files for sentence in mistakes(Path(file).read_text())]
    print("\n".join(lines) or f"{', '.join(files)}: right")  # noqa: T201
    return 1 if lines or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["fly.toml"]))
