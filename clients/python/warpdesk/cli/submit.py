"""`warpdesk submit`: send one job, wait for it, and print the answer or write it to a file."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from warpdesk.cli.asking import with_key_hint
from warpdesk.cli.command import INTERRUPTED, Subcommands, fail
from warpdesk.cli.inputs import read_input
from warpdesk.cli.output import add_output, places, show
from warpdesk.cli.values import typed

if TYPE_CHECKING:
    from warpdesk.client import Client, Job


def add(commands: Subcommands) -> None:
    submit = commands.add_parser(
        "submit",
        help="send one job, wait, print the answer",
        description="Send one job, wait for it and print the answer. On a terminal a line shows the job's place in the "
        "queue and its progress. Ctrl-C cancels the job. A job that is not done within --timeout goes on, and its id "
        "is printed. With --detach nothing is waited for.",
    )
    submit.add_argument(
        "operation", help="its name: `warpdesk operations` lists them, `warpdesk operations rsi` explains"
    )
    submit.add_argument("-p", "--param", action="append", default=[], metavar="NAME=VALUE", help="e.g. -p period=14")
    submit.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="FILE.npy, FILE.csv:Column, FILE.csv.gz:Column, - or -:Column for standard input, the id of an array, or "
        "dataset:NAME/COLUMN",
    )
    submit.add_argument("--backend", choices=("auto", "gpu", "cpu"), default="auto")
    submit.add_argument("--priority", choices=("realtime", "batch", "research"), default="batch")
    submit.add_argument(
        "--width", type=_shards, default="auto", metavar="N", help="parts in which several workers compute it, or auto"
    )
    submit.add_argument("--seed", type=int)
    submit.add_argument("--deadline", type=float, metavar="SECONDS", help="the job expires if it is not done by then")
    submit.add_argument(
        "--idempotency-key",
        metavar="TEXT",
        help="the same command with the same text gets the same job, for a day; for ever if a budget is charged",
    )
    submit.add_argument("--timeout", type=float, metavar="SECONDS", help="how long to wait (default: until it is done)")
    submit.add_argument(
        "--detach", action="store_true", help="print the job's id and do not wait: `warpdesk jobs result ID` does"
    )
    submit.add_argument("--url", help="the service (default: WARPDESK_URL or http://127.0.0.1:8000)")
    submit.add_argument("--json", action="store_true", help="print all numbers as JSON")
    add_output(submit)
    submit.set_defaults(run=_submit)


def _shards(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number of parts or auto, got {text!r}") from None


def _submit(chosen: argparse.Namespace) -> int:
    from warpdesk.client import Client, ProgressBar, Unreachable, WarpdeskError

    job = None
    try:
        words = _named("-p", chosen.param, "NAME=VALUE, for example period=14")
        given = _named("-i", chosen.input, "NAME=FILE, for example close=prices.csv:Close")
        for name in sorted(words.keys() & given.keys()):
            raise ValueError(f"{name} is given both with -p and with -i")
        if sum(place.partition(":")[0] == "-" for place in given.values()) > 1:
            raise ValueError("standard input can be one input alone")
        if chosen.detach and chosen.out:
            raise ValueError("--detach does not wait for an answer that -o could write")
        places(chosen.out)  # before the service is asked for anything
        with ExitStack() as opened:
            files = {name: opened.enter_context(read_input("-i", place)) for name, place in given.items()}
            for name, file in files.items():
                if file.is_csv and not file.columns:
                    raise ValueError(f"-i {name}={given[name]}: name the column, such as {given[name]}:Close")
            client = opened.enter_context(Client(chosen.url))
            description = client.operations().get(chosen.operation)  # None: the service says that it does not exist
            schemas = description.params.get("properties", {}) if description else {}
            params = {name: typed(text, schemas.get(name, {})) for name, text in words.items()}
            inputs = {name: file.value(client) for name, file in files.items()}
            job = client.submit(
                chosen.operation,
                backend=chosen.backend,
                priority=chosen.priority,
                seed=chosen.seed,
                deadline_s=chosen.deadline,
                shards=chosen.width,
                idempotency_key=chosen.idempotency_key,
                params=params | inputs,
            )
            if chosen.detach:
                print(job.model_dump_json() if chosen.json else job.id)
                return 0
            try:
                with ProgressBar(place=lambda: client.job(job).queue_position) as bar:
                    result = client.result(job, chosen.timeout, progress=bar if bar.shown else None)
            except KeyboardInterrupt:
                return _canceled(client, job)
            return show(result, chosen)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Unreachable as error:
        if job is not None:
            return fail(f"{error}; the job {job.id} goes on once the service is back: warpdesk jobs result {job.id}")
        return fail(f"{error}; is `warpdesk serve` running there? Another address is named by --url or WARPDESK_URL")
    except WarpdeskError as error:
        return fail(with_key_hint(error))
    except (OSError, EOFError, TypeError, ValueError) as error:
        return fail(str(error))


def _canceled(client: "Client", job: "Job") -> int:
    """Cancel the job of `warpdesk submit` after Ctrl-C, since nobody is left to read its result."""
    from warpdesk.client import WarpdeskError

    try:
        outcome = f"the job {job.id} is {client.cancel(job).status}"
    except WarpdeskError as error:
        outcome = f"the job {job.id} goes on: {error}"
    print(f"warpdesk: {outcome}", file=sys.stderr)
    return INTERRUPTED


def _named(option: str, texts: Sequence[str], expected: str) -> dict[str, str]:
    """Parse the NAME=VALUE options of `warpdesk submit` to a dictionary. Raises ValueError for a missing or repeated
    name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{option} {text}: expected {expected}")
        if name in found:
            raise ValueError(f"{option} {name} is given twice: {found[name]} and {value}")
        found[name] = value
    return found
