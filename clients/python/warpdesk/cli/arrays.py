"""`warpdesk arrays`: upload, list, show, download and delete stored arrays."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from warpdesk.cli.asking import add_service, pages, print_fields, print_json, print_table, since
from warpdesk.cli.command import Subcommands
from warpdesk.cli.inputs import read_input

if TYPE_CHECKING:
    from warpdesk.client import Client


def add(commands: Subcommands) -> None:
    arrays = commands.add_parser("arrays", help="upload, list, download and delete stored arrays").add_subparsers(
        required=True, metavar="ACTION"
    )
    listed = arrays.add_parser("list", help="list arrays, newest first")
    listed.add_argument("--limit", type=int, default=20, metavar="N", help="at most so many (default: %(default)s)")
    add_service(listed, _list)
    shown = arrays.add_parser("show", help="show an array's shape, dtype and time")
    shown.add_argument("array", help="its id")
    add_service(shown, _show)
    upload = arrays.add_parser("upload", help="upload a file and print the array's id, which jobs take as input")
    upload.add_argument("file", help="FILE.npy, FILE.csv[:COLUMN], FILE.csv.gz[:COLUMN], or - for standard input")
    add_service(upload, _upload)
    download = arrays.add_parser("download", help="write an array to a .npy file")
    download.add_argument("array", help="its id")
    download.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.npy")
    add_service(download, _download)
    delete = arrays.add_parser("delete", help="delete arrays that no live job reads")
    delete.add_argument("array", nargs="+", help="their ids")
    add_service(delete, _delete)


def _list(client: "Client", chosen: argparse.Namespace) -> int:
    first = client.call("GET", f"/v1/arrays?limit={min(max(chosen.limit, 1), 200)}")
    rest = pages(client, first["next"], "arrays", chosen.limit - len(first["arrays"])) if first["next"] else []
    found = [*first["arrays"], *rest][: chosen.limit]
    if chosen.json:
        print_json(found)
        return 0
    rows = [
        [each["id"], each["dtype"], "×".join(map(str, each["shape"])), f"{each['bytes']:,}", since(each["created_at"])]
        for each in found
    ]
    print_table(["array", "dtype", "shape", "bytes", "age"], rows, "The key has no arrays.")
    print(f"stored: {first['stored_bytes']:,} of {first['max_stored_bytes']:,} bytes")
    return 0


def _show(client: "Client", chosen: argparse.Namespace) -> int:
    found = client.call("GET", f"/v1/arrays/{chosen.array}")
    print_json(found) if chosen.json else print_fields(found)
    return 0


def _upload(client: "Client", chosen: argparse.Namespace) -> int:
    with read_input("FILE", chosen.file) as given:
        stored = given.upload(client)
    print_json(stored.model_dump(mode="json")) if chosen.json else print(stored.id)
    return 0


def _download(client: "Client", chosen: argparse.Namespace) -> int:
    import numpy as np

    if chosen.out.suffix != ".npy":
        raise ValueError(f"-o {chosen.out}: expected FILE.npy")
    np.save(chosen.out, client.download(chosen.array), allow_pickle=False)
    print(chosen.out)
    return 0


def _delete(client: "Client", chosen: argparse.Namespace) -> int:
    for array in chosen.array:
        client.call("DELETE", f"/v1/arrays/{array}")
    return 0
