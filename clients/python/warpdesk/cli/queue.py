"""`warpdesk queue` and `warpdesk audit`: an administrator's view of all keys' jobs, the pause, and the audit log."""

import argparse
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from warpdesk.cli.asking import Command, add_service, pages, print_json, print_table, since
from warpdesk.cli.command import Subcommands

if TYPE_CHECKING:
    from warpdesk.client import Client

# Seconds between two looks at the queue: each is a line of the audit log, and some jobs run for hours.
_HEARD_SECONDS = 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


def add(commands: Subcommands) -> None:
    queue = commands.add_parser(
        "queue", help="for administrators: what waits and runs, pause, drain, dead letters"
    ).add_subparsers(required=True, metavar="ACTION")
    add_service(queue.add_parser("show", help="show what waits and runs, and the jobs that have waited longest"), _show)
    add_service(queue.add_parser("pause", help="have no worker take a job; what runs goes on"), _change("pause"))
    add_service(queue.add_parser("resume", help="have workers take jobs again"), _change("resume"))
    drain = queue.add_parser("drain", help="pause, and wait until nothing runs: then workers can be stopped")
    drain.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after so long, still paused")
    add_service(drain, _drain)
    dead = queue.add_parser("dead-letters", help="list the jobs that were given up")
    dead.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (default: %(default)s)")
    add_service(dead, _dead_letters)
    rerun = queue.add_parser("rerun", help="queue dead letters again")
    rerun.add_argument("job", nargs="+")
    add_service(rerun, _rerun)
    audit = commands.add_parser("audit", help="for administrators: the last lines of the audit log")
    audit.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (default: %(default)s)")
    add_service(audit, _audit)


def _show(client: "Client", chosen: argparse.Namespace) -> int:
    return _print(client.call("GET", "/v1/queue"), chosen)


def _print(state: dict[str, Any], chosen: argparse.Namespace) -> int:
    if chosen.json:
        print_json(state)
        return 0
    rows = [
        [lane["priority"], lane["queued"], lane["running"], lane["delayed"], since(lane["oldest_at"])]
        for lane in state["lanes"]
    ]
    print_table(["priority", "queued", "running", "delayed", "oldest"], rows, "")
    paused = "PAUSED: no worker takes a job. " if state["paused"] else ""
    print(
        f"\n{paused}{state['workers']} workers, {state['paused_tasks']} paused tasks, "
        f"{state['dead_letters']} dead letters"
    )
    if state["oldest"]:
        print("\nwaiting longest")
        oldest = [
            [job["id"], job["owner"], job["operation"], job["priority"], job["backend"], since(job["submitted_at"])]
            for job in state["oldest"]
        ]
        print_table(["job", "key", "operation", "priority", "backend", "age"], oldest, "")
    return 0


def _change(action: str) -> Command:
    return lambda client, chosen: _print(client.call("POST", f"/v1/queue/{action}"), chosen)


def _drain(client: "Client", chosen: argparse.Namespace) -> int:
    began, state = time.monotonic(), client.call("POST", "/v1/queue/pause")
    pause = _FIRST_PAUSE
    # Workers hear of a pause within a second: what they took until then runs too.
    while (running := sum(lane["running"] for lane in state["lanes"])) or time.monotonic() - began < _HEARD_SECONDS:
        left = math.inf if chosen.timeout is None else began + chosen.timeout - time.monotonic()
        if left <= 0:
            print(f"warpdesk: {running} jobs still run; the queue stays paused", file=sys.stderr)
            return 1
        time.sleep(min(pause, left))
        pause = min(1.5 * pause, _LONGEST_PAUSE)
        state = client.call("GET", "/v1/queue")
    return _print(state, chosen)


def _dead_letters(client: "Client", chosen: argparse.Namespace) -> int:
    found = pages(client, "/v1/dead-letters?limit=200", "dead_letters", chosen.limit)
    if chosen.json:
        print_json(found)
        return 0
    rows = [
        [
            *(each["id"], each["owner"], each["operation"], each["attempt"], since(each["ended_at"])),
            "" if each["error"] is None else each["error"]["message"][:80],
        ]
        for each in found
    ]
    print_table(["job", "key", "operation", "attempts", "age", "why"], rows, "There are no dead letters.")
    return 0


def _rerun(client: "Client", chosen: argparse.Namespace) -> int:
    found = [client.call("POST", f"/v1/dead-letters/{job}/rerun") for job in chosen.job]
    print_json(found) if chosen.json else print_table(
        ["job", "status"], [[job["id"], job["status"]] for job in found], ""
    )
    return 0


def _audit(client: "Client", chosen: argparse.Namespace) -> int:
    found = client.call("GET", f"/v1/audit?limit={chosen.limit}")["entries"]
    if chosen.json:
        print_json(found)
        return 0
    rows = [
        [
            each["at"],
            each["who"].get("name", each["who"].get("user", "?")),
            each["action"],
            each["target"] or "",
            each["outcome"],
        ]
        for each in found
    ]
    print_table(["at", "who", "action", "target", "outcome"], rows, "The audit log is empty.")
    return 0
