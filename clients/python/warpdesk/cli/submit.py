"""`warpdesk submit`: send one job, wait for it and print the answer."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from warpdesk.cli.command import INTERRUPTED, Subcommands, fail
from warpdesk.cli.values import in_short, listed, typed

if TYPE_CHECKING:
    from warpdesk.client import Client, Job


def add(commands: Subcommands) -> None:
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
    submit.add_argument("--url", help="the service (default: WARPDESK_URL or http://127.0.0.1:8000)")
    submit.add_argument("--json", action="store_true", help="print all numbers as JSON")
    submit.set_defaults(run=_submit)


def _shards(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number of parts or auto, got {text!r}") from None


def _submit(chosen: argparse.Namespace) -> int:
    import numpy as np

    from warpdesk.client import Client, ProgressBar, Unreachable, WarpdeskError

    job = None
    try:
        words = _named("-p", chosen.param, "NAME=VALUE, for example period=14")
        places = _named("-i", chosen.input, "NAME=FILE, for example close=prices.csv:Close")
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
                shards=chosen.width,
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
        if job is not None:
            return fail(f"{error}; the job {job.id} goes on once the service is back: GET /v1/jobs/{job.id}")
        return fail(f"{error}; is `warpdesk serve` running there? Another address is named by --url or WARPDESK_URL")
    except WarpdeskError as error:
        return fail(str(error))
    except (OSError, EOFError, TypeError, ValueError) as error:
        return fail(str(error))
    outputs = {name: listed(value) for name, value in result.outputs.items()}
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


def _file(place: str) -> tuple[Path, str]:
    """The path of the input file for `warpdesk submit`, and its column if it is a CSV. Raises OSError if the file
    cannot be opened."""
    file, colon, column = place.rpartition(":")
    if not colon or place.endswith(".npy"):
        file, column = place, ""
    path = Path(file)
    if not (path.suffix == ".npy" or (path.suffix == ".csv" and column)):
        raise ValueError(f"-i {place}: expected FILE.npy or FILE.csv:Column (unpack a .gz first)")
    path.open("rb").close()  # before the service is asked for anything
    return path, column
