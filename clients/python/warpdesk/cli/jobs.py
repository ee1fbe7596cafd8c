"""`warpdesk jobs`: list, show, watch, cancel, pause, resume and erase jobs, and fetch their results."""

import argparse
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from warpdesk.cli.asking import Command, add_service, pages, print_fields, print_json, print_table, since
from warpdesk.cli.command import Subcommands
from warpdesk.cli.output import add_output, show

if TYPE_CHECKING:
    from warpdesk.client import Client


def add(commands: Subcommands) -> None:
    jobs = commands.add_parser("jobs", help="list, show, watch, cancel and erase jobs, fetch results").add_subparsers(
        required=True, metavar="ACTION"
    )
    listed = jobs.add_parser("list", help="list jobs, newest first")
    listed.add_argument(
        "--status",
        action="append",
        metavar="STATE",
        help="queued, running, paused, succeeded, failed, canceled or expired alone; may be given again",
    )
    listed.add_argument("--operation", help="of this operation alone")
    listed.add_argument("--since", metavar="TIME", help="submitted from then on, such as 2026-01-05T09:30:00Z")
    listed.add_argument("--until", metavar="TIME", help="submitted before then")
    listed.add_argument("--owner", metavar="KEY", help="of another API key, by its id: for administrators")
    listed.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (default: %(default)s)")
    add_service(listed, _list)
    show_one = jobs.add_parser("show", help="show a job with its parameters and inputs")
    show_one.add_argument("job")
    add_service(show_one, _show)
    watch = jobs.add_parser(
        "watch",
        help="print a job's events until its end, or without a job those of all",
        description="Print the events of a job until its end: exit code 0 if it succeeded, else 1. Without a job print "
        "what happens to all jobs of the key, until Ctrl-C.",
    )
    watch.add_argument("job", nargs="?")
    add_service(watch, _watch)
    result = jobs.add_parser("result", help="wait for a job and print its answer, or write it to a file")
    result.add_argument("job")
    result.add_argument("--timeout", type=float, metavar="SECONDS", help="how long to wait (default: until it is done)")
    add_output(result)
    add_service(result, _result)
    for action, what in (
        ("cancel", "cancel queued and running jobs"),
        ("pause", "pause tasks: they stop after a step and keep their state"),
        ("resume", "let paused tasks go on"),
    ):
        command = jobs.add_parser(action, help=what)
        command.add_argument("job", nargs="+")
        add_service(command, _move(action))
    erase = jobs.add_parser("erase", help="erase jobs with their inputs and results")
    erase.add_argument("job", nargs="+")
    add_service(erase, _erase)


def _list(client: "Client", chosen: argparse.Namespace) -> int:
    if chosen.limit < 1:
        raise ValueError(f"--limit is a number from 1 on, got {chosen.limit}")
    query = [("limit", min(chosen.limit, 200)), *(("status", state) for state in chosen.status or ())]
    query += [
        (name, value)
        for name in ("operation", "since", "until", "owner")
        if (value := getattr(chosen, name)) is not None
    ]
    found = pages(client, f"/v1/jobs?{urlencode(query)}", "jobs", chosen.limit)
    if chosen.json:
        print_json(found)
        return 0
    rows = [
        [job["id"], job["operation"], job["status"], job["priority"], since(job["submitted_at"]), _how(job)]
        for job in found
    ]
    print_table(["job", "operation", "status", "priority", "age", "how"], rows, "There are no such jobs.")
    return 0


def _how(job: dict[str, Any]) -> str:
    """What a list says of a job besides its state: why it failed, how far it is, where it was computed."""
    if job["error"] is not None:
        return f"{job['error']['code']}: {job['error']['message']}"[:80]
    if job["status"] == "running" and job["progress"] is not None:
        return f"{job['progress']:.0%}"
    return job["provenance"]["backend"] if job["provenance"] else ""


def _show(client: "Client", chosen: argparse.Namespace) -> int:
    job = client.call("GET", f"/v1/jobs/{chosen.job}")
    if chosen.json:
        print_json(job)
    else:
        print_fields({name: value for name, value in job.items() if name not in ("links", "result", "erased")})
    return 0


def _watch(client: "Client", chosen: argparse.Namespace) -> int:
    last = ""
    for event in client.follow() if chosen.job is None else client.events(chosen.job):
        if chosen.json:
            print(event.model_dump_json(), flush=True)
        elif event.event == "gap":
            print(f"{'':<24} {event.detail}", flush=True)
        else:
            job = "" if chosen.job else f"{event.job}  {event.operation}  "
            far = "" if event.progress is None else f" {event.progress:.0%}"
            why = f" ({event.reason})" if event.reason else ""
            print(f"{event.at:%Y-%m-%d %H:%M:%S}  {job}{event.event}{far}{why}", flush=True)
        last = event.event
    if not last:  # it had ended, and its events are no longer kept
        last = client.job(chosen.job).status.value
    return 0 if last == "succeeded" else 1


def _result(client: "Client", chosen: argparse.Namespace) -> int:
    return show(client.result(chosen.job, chosen.timeout), chosen)


def _move(action: str) -> Command:
    def run(client: "Client", chosen: argparse.Namespace) -> int:
        found = [client.call("POST", f"/v1/jobs/{job}/{action}") for job in chosen.job]
        if chosen.json:
            print_json(found)
        else:
            print_table(["job", "status"], [[job["id"], job["status"]] for job in found], "")
        return 0

    return run


def _erase(client: "Client", chosen: argparse.Namespace) -> int:
    for job in chosen.job:
        client.delete(job)
    return 0
