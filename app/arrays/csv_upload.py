"""The CSV upload of arrays: a small CSV is parsed in this process, a larger one in a child process with limits."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from warpdesk_server.app.arrays import table
from warpdesk_server.app.arrays.npy_upload import NpyUpload
from warpdesk_server.app.kit import limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.workers.store import npy
from warpdesk_server.workers.store.protocol import StoredArray

BLOCK = 1 << 20  # bytes of a CSV's numbers that are taken at once


def from_csv(body: bytes, columns: Sequence[str], limit: int, upload: NpyUpload) -> StoredArray:
    """Store a CSV upload of at most `limit` bytes as a float64 array: one column as (rows,), several as (columns,
    rows).

    Each column is a series, as the operations take (assets, time). All but a small CSV are parsed by a child process
    (`app.arrays.table`). So this process holds no more of them than the pieces that `upload` is given.
    """
    memory, cells = limits.CSV_MEMORY + limits.CSV_BYTES * len(body), limit // 2
    order = table.Order(columns, limits.CSV_COLUMNS, cells, memory, limits.CSV_SECONDS)
    if not is_small_csv(body):
        return _read_apart(body, order, upload)
    try:
        series = table.read(body, order)
    except table.Malformed as error:
        raise _malformed_csv(error.detail, error.pointer) from None
    upload.take(npy.header("float64", table.shape(series)))
    for values in series:
        upload.take(values.tobytes())
    return upload.finish()


def is_small_csv(body: bytes) -> bool:
    """Whether a CSV upload is small enough to be parsed in this process, without queuing for a child process."""
    return len(body) <= limits.CSV_SMALL


def _read_apart(body: bytes, order: table.Order, upload: NpyUpload) -> StoredArray:
    """Parse a CSV upload in a child process, and store the numbers it prints."""
    command = [sys.executable, "-I", "-S", table.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None  # noqa: S101 - pipes, as asked
        assert reader.stdout is not None  # noqa: S101
        with suppress(BrokenPipeError), reader.stdin as sent:
            sent.write(json.dumps(asdict(order)).encode() + b"\n")
            sent.write(body)
        answer = reader.stdout.readline()
        if answer.endswith(b"\n"):
            read = json.loads(answer)
            if "detail" in read:
                raise _malformed_csv(read["detail"], read["pointer"])
            upload.take(npy.header("float64", tuple(read["shape"])))
            while piece := reader.stdout.read(BLOCK):
                upload.take(piece)
                upload.flush()
            if reader.wait() == 0:
                return upload.finish()
    if reader.returncode == -signal.SIGXCPU:
        raise _malformed_csv(f"Reading the CSV takes more than {order.seconds} s of a processor")
    if reader.returncode == -signal.SIGKILL:
        sentence = "The process that read the CSV was killed, probably because the machine ran out of memory"
        raise Refusal("busy", sentence, headers={"Retry-After": "10"})
    raise RuntimeError(f"the process that read a CSV ended with {reader.returncode}")


def _malformed_csv(sentence: str, pointer: str | None = None) -> Refusal:
    return Refusal("malformed-csv", sentence) if pointer is None else refuse_at("malformed-csv", pointer, sentence)
