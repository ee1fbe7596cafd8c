"""Requests that are wrong in every way we know of, drawn from a seed: bodies that lie, headers that are odd, both."""

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from warpdesk_server.kernels.catalogue import CATALOGUE

JSON, NPY, CSV = "application/json", "application/x-npy", "text/csv"


@dataclass
class Created:
    """Names that exist, so that not all is refused as unknown."""

    jobs: list[str] = field(default_factory=lambda: ["job_" + "0" * 32])
    arrays: list[str] = field(default_factory=lambda: ["blake3:" + "0" * 64])

    def learn(self, answer: bytes) -> None:
        try:
            named = json.loads(answer).get("id", "")
        except (ValueError, AttributeError, RecursionError):
            return
        kept = self.jobs if str(named).startswith("job_") else self.arrays
        if named and len(kept) < 1000:
            kept.append(str(named))


@dataclass(frozen=True)
class Drawn:
    """The bytes of a request. An honest one is framed as HTTP is, and gets an answer."""

    sent: bytes
    honest: bool
    head_only: bool  # its answer has no body


def request(chance: Random, created: Created, tokens: Sequence[str]) -> Drawn:
    """One request. Most keys are good ones: what they may not do is soon told."""
    method, path, kind = _route(chance, created)
    body, media_type = _BODIES[kind](chance) if kind else (b"", None)
    headers = [("Host", "127.0.0.1")]
    if chance.random() < 0.95:
        token = tokens[1 if path.startswith("/v1/worker") and chance.random() < 0.9 else 0]
        headers.append(("Authorization", f"Bearer {token}"))
    if media_type is not None:
        headers.append(("Content-Type", media_type if chance.random() < 0.97 else _word(chance)))
    if body and chance.random() < 0.1:
        body, encoding = _compressed(chance, body)
        if chance.random() < 0.6:
            headers.append(("Content-Encoding", encoding))
    headers += [_header(chance) for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 5)))]
    framed, honest = _framed(chance, body, headers)
    head = f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(
        b"%s: %s\r\n" % (name.encode(), value.encode("latin-1", "replace")) for name, value in headers
    )
    return Drawn(head + b"\r\n" + framed, honest, method == "HEAD")


# Where to.

_ROUTES: tuple[tuple[int, str, str, str], ...] = (
    (30, "POST", "/v1/jobs", "job"),
    (20, "PUT", "/v1/arrays", "array"),
    (6, "PUT", "/v1/arrays?columns={word}", "csv"),
    (2, "GET", "/v1/jobs?limit={number}&cursor={word}&status={word}", ""),
    (2, "GET", "/v1/jobs/{job}", ""),
    (2, "DELETE", "/v1/jobs/{job}", ""),
    (3, "POST", "/v1/jobs/{job}/cancel", "any"),
    (2, "GET", "/v1/jobs/{job}/result", ""),
    (2, "GET", "/v1/jobs/{job}/result/{word}", ""),
    (4, "GET", "/v1/jobs/{job}/events", ""),
    (4, "GET", "/v1/arrays/{array}", ""),
    (1, "HEAD", "/v1/arrays/{array}", ""),
    (1, "DELETE", "/v1/arrays/{array}", ""),
    (1, "GET", "/v1/dead-letters?limit={number}&cursor={word}", ""),
    (1, "POST", "/v1/dead-letters/{job}/rerun", "any"),
    (2, "POST", "/v1/worker/inputs", "any"),
    (4, "POST", "/v1/worker/results", "results"),
    (1, "GET", "/v1/worker/inputs/{job}.{number}/{word}", ""),
    (1, "DELETE", "/v1/worker/results/{job}.{number}", ""),
    (1, "DELETE", "/v1/worker/jobs/{job}/secrets", ""),
    (1, "GET", "/v1/operations/{word}", ""),
    (1, "GET", "/problems/{word}", ""),
    (1, "GET", "/{word}", ""),
    (1, "GET", "/health", "any"),
)


def _route(chance: Random, created: Created) -> tuple[str, str, str]:
    _, method, path, kind = chance.choices(_ROUTES, [route[0] for route in _ROUTES])[0]
    names = {"job": created.jobs, "array": created.arrays}
    while "{" in path:
        before, _, rest = path.partition("{")
        what, _, after = rest.partition("}")
        if what in names and chance.random() < 0.8:
            value = names[what][0] if chance.random() < 0.1 else chance.choice(names[what][-50:])
        else:
            value = str(_number(chance)) if what == "number" else _escaped(_word(chance))
        path = before + value + after
    if chance.random() < 0.02:
        method = chance.choice(("PATCH", "OPTIONS", "TRACE", "DELETE", "PUT", "HEAD"))
    return method, path, kind


def _escaped(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "".join(f"%{b:02x}" for b in c.encode()) for c in text)


# Words and numbers.

_WORDS = (
    "", " ", "a", "wait=1", "bytes=0-", "../../etc/passwd", "%00", "\x00", "\ufeff", "é", "日本", "\U0001f4a5", "null",
    "NaN", "-0", "1e400", "a" * 300, "a," * 200, "prices", "scaled", "{}", "[[", "'", '"', "rsi", "x\ty", "\u202e",
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2, 127, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30,
    10**400, 0.5, -0.0, 1e308, 5e-324, 2.2e-308,
)  # fmt: skip


def _word(chance: Random) -> str:
    return chance.choice(_WORDS)


def _number(chance: Random) -> int | float:
    return chance.choice(_NUMBERS)


# Headers.


def _header(chance: Random) -> tuple[str, str]:
    number = _number(chance)
    return chance.choice(
        (
            ("Idempotency-Key", chance.choice((_word(chance), "k", "k" * 255, "k" * 256, "\xff", "Ã©", "a\tb"))),
            ("Last-Event-ID", chance.choice((_word(chance), str(number), "1", "0", "٣"))),
            ("Prefer", chance.choice((f"wait={number}", "wait", "wait=0", 'wait="0', "respond-async;;,=", "wait=-1"))),
            ("Range", chance.choice((f"bytes={number}-", "bytes=-0", "bytes=0-0,5-2", "bytes=" + "0-1," * 500, "b"))),
            ("If-Range", chance.choice((_word(chance), '"x"', 'W/"x"'))),
            ("Accept", chance.choice((_word(chance), "*/*;q=2", NPY, "text/event-stream", ",;q", "a/b;q=0.0000"))),
            ("X-Request-ID", _word(chance)),
            ("Authorization", chance.choice(("Bearer", f"Bearer wd_{0:012}_{0:043}", "Basic eA==", "\xe9"))),
            ("Content-Type", _word(chance)),
            ("Content-Encoding", chance.choice(("gzip, gzip", "br", "zstd", "identity", ""))),
            ("Expect", chance.choice(("100-continue", "200-ok"))),
            ("Connection", chance.choice(("close", "keep-alive", "upgrade", "te"))),
            ("Upgrade", chance.choice(("h2c", "websocket"))),
            ("Host", chance.choice(("", "evil.example", "[::1", "127.0.0.1:99999999999"))),
            ("X-Forwarded-For", "1" * 3000),
            ("TE", "trailers"),
        )
    )  # fmt: skip


# How it is framed.


def _framed(chance: Random, body: bytes, headers: list[tuple[str, str]]) -> tuple[bytes, bool]:
    """The body as it is sent, and whether its frame is what it says."""
    clean = not any(
        name in ("Connection", "Upgrade", "Host", "Expect") or any(ord(c) < 32 for c in value)
        for name, value in headers[1:]
    )
    way = chance.random()
    if way < 0.8:
        if body or chance.random() < 0.5:
            headers.append(("Content-Length", str(len(body))))
        return body, clean
    if way < 0.9:
        headers.append(("Transfer-Encoding", "chunked"))
        return _chunks(chance, body), clean
    if way < 0.95:
        lie = chance.choice((len(body) + 1, len(body) + 10**9, max(0, len(body) - 1), 2**63, 2**64, 10**30, -1))
        headers.append(("Content-Length", str(lie)))
        return body, False
    headers.append(("Transfer-Encoding", chance.choice(("chunked", "chunked, chunked", "gzip, chunked", "identity"))))
    if chance.random() < 0.5:
        headers.append(("Content-Length", str(len(body))))
    broken = bytearray(_chunks(chance, body))
    _flip(chance, broken)
    return bytes(broken[: chance.randrange(len(broken) + 1)]), False


def _chunks(chance: Random, body: bytes) -> bytes:
    pieces: list[bytes] = []
    place = 0
    while place < len(body):
        size = chance.choice((1, 2, 7, 100, 5000, 70_000))
        if len(pieces) > 50:
            size = len(body)
        piece = body[place : place + size]
        pieces.append(b"%x%s\r\n%s\r\n" % (len(piece), chance.choice((b"", b"", b";a=b")), piece))
        place += size
    return b"".join(pieces) + b"0\r\n\r\n"


def _flip(chance: Random, data: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 2, 8))):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)


def _compressed(chance: Random, body: bytes) -> tuple[bytes, str]:
    """Compressed as it says or not; some grow a thousandfold for whoever unpacks them."""
    if chance.random() < 0.1:
        body = bytes(1_000_000)
    return chance.choice(
        (
            (gzip.compress(body, 1), "gzip"),
            (gzip.compress(gzip.compress(body, 1), 1), "gzip"),
            (zlib.compress(body, 1), "deflate"),
            (b"PK\x03\x04" + zlib.compress(body, 1), "zip"),
            (body, "gzip"),
        )
    )


# Bodies.


def _job(chance: Random) -> tuple[bytes, str]:
    operation = chance.choice(list(CATALOGUE.values()))
    example = operation.example
    body: Any = {"operation": operation.name, "params": dict(example.params), "inputs": dict(example.inputs)}
    if chance.random() < 0.3:
        body |= {"priority": chance.choice(("batch", "realtime", "x")), "deadline_s": _number(chance)}
    body = json.loads(json.dumps(body))
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        body = _changed(chance, body)
    return _text(chance, body), JSON


def _changed(chance: Random, value: Any) -> Any:
    """The same with one thing in it replaced, left out or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        match chance.randrange(12):
            case 0:
                return {name: entry for name, entry in value.items() if name != key}
            case 1:
                return {**value, _word(chance): _odd(chance)}
            case _:
                return {**value, key: _changed(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], _changed(chance, value[place]), *value[place + 1 :]]
    return _odd(chance)


def _odd(chance: Random) -> Any:
    return chance.choice(
        (
            _number(chance), _number(chance), _word(chance), None, True, [], {}, [[]], [[1.0], [1.0, 2.0]], "\ud800",
            [_number(chance)] * 5, [1.0] * 1000, {"array": "blake3:" + "0" * 64}, {"data": [None, 1.0]}, {"data": "x"},
            _nested(chance.choice((5, 150, 250))),
        )
    )  # fmt: skip


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _text(chance: Random, body: Any) -> bytes:
    text = json.dumps(body).encode()
    match chance.randrange(30):
        case 0:
            return text[: chance.randrange(len(text) + 1)]
        case 1:
            broken = bytearray(text)
            _flip(chance, broken)
            return bytes(broken)
        case 2:
            return chance.choice((b"[", b'{"a":', b"[{", b'{"operation":')) * chance.choice((10, 1000, 100_000))
        case 3:
            return text.replace(b"1", b"1" * chance.choice((20, 400, 5000)), 1)
        case 4:
            return chance.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b" " * 5000)) + text
        case 5:
            return text.replace(b'"', b'"\xff', 2)
        case 6:
            return b'{"operation":"rsi",' + text[1:]
    return text


_HEADERS = (
    "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '>f8', 'fortran_order': True, 'shape': (3, 2), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-3,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1" + "0" * 30 + ",), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }",
    "{'descr': '<f8', 'fortran_order': 1, 'shape': 3, }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9999999999999), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<f16', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<U5', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<f8', 'shape': (3,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), 'more': 1}",
    "{'descr': '<f8', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
    "__import__('os').abort()",
    "{**{}}", "(" * 500, "[" * 9000, "-" * 5000 + "1", "{'descr':" * 300, "'\\N{DIGIT ONE}'", "\0", "{", "", "1" * 9000,
    "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 2000 + "), }",
)  # fmt: skip


def _npy(chance: Random) -> tuple[bytes, str]:
    if chance.random() < 0.5:
        return _with_header(chance), NPY
    dtype = chance.choice(("<f8", ">f8", "<f4", "<i8", "<i4", "<u8", "<u4", "|u1", ">i4", "|b1", "<c16", "<f2"))
    shape = chance.choice(((), (0,), (1,), (3,), (100,), (2, 3), (0, 5), (30, 40), (2, 2, 2)))
    numbers = np.frombuffer(chance.randbytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
    if numbers.dtype.kind == "f" and chance.random() < 0.5:
        odd = np.array([chance.choice((np.nan, np.inf, -np.inf, 5e-324, -0.0)) for _ in range(numbers.size)])
        numbers = odd.reshape(shape).astype(dtype)
    file = io.BytesIO()
    np.save(file, np.asfortranarray(numbers) if chance.random() < 0.2 else numbers)
    content = bytearray(file.getvalue())
    match chance.randrange(5):
        case 0:
            _flip(chance, content)
        case 1:
            del content[chance.randrange(len(content)) :]
        case 2:
            content += chance.randbytes(chance.choice((1, 7, 8, 5000)))
        case 3:
            content[chance.randrange(min(128, len(content)))] = chance.randrange(256)
    return bytes(content), NPY


def _with_header(chance: Random) -> bytes:
    header = chance.choice(_HEADERS).encode()
    length = chance.choice((len(header), len(header), len(header) + 1, 0, 65_535, 2**32 - 1, max(0, len(header) - 3)))
    version = chance.choice((1, 1, 2, 3, 0, 4, 255))
    header_length = struct.pack("<H", length & 0xFFFF) if version == 1 else struct.pack("<I", length)
    return b"\x93NUMPY" + bytes((version, chance.choice((0, 0, 0, 1)))) + header_length + header + chance.randbytes(24)


def _csv(chance: Random) -> tuple[bytes, str]:
    cells = (
        "1", "1.5", "", "nan", "inf", "-Infinity", "1e999", "9" * 5000, "0x1p3", "1_000", "٣", "=1+1", '"1', '"1"',
        " 2 ", "1e-320", "é", "\0", "1" * 400 + ".5", "1,5", "NULL", "true",
    )  # fmt: skip
    rows = chance.choice((0, 1, 2, 5, 300))
    columns = chance.choice((1, 1, 2, 3, 200))
    separator = chance.choice((",", ",", ",", ";", "\t"))
    end = chance.choice(("\n", "\r\n", "\r", "\n\n"))
    plain = chance.random() < 0.4
    lines = [
        separator.join(str(row) if plain else chance.choice(cells) for _ in range(columns + (chance.random() < 0.02)))
        for row in range(rows)
    ]
    if chance.random() < 0.5:
        lines.insert(0, separator.join(chance.choice(("Close", "prices", "a", "", '"')) for _ in range(columns)))
    content = bytearray(chance.choice(("", "", "\ufeff", "\0")).encode() + end.join(lines).encode())
    if chance.random() < 0.2:
        _flip(chance, content)
    return bytes(content), CSV


def _array(chance: Random) -> tuple[bytes, str]:
    return _npy(chance) if chance.random() < 0.7 else _csv(chance)


def _results(chance: Random) -> tuple[bytes, str]:
    body = json.dumps({"results": chance.choice(([], [{"name": "job_" + "0" * 32 + ".1"}], {}, _nested(150)))}).encode()
    length = chance.choice((len(body), len(body), 0, len(body) + 1, 2**31, 2**32 - 1))
    return length.to_bytes(4, "big") + body + chance.randbytes(chance.choice((0, 100))), "application/octet-stream"


def _any(chance: Random) -> tuple[bytes, str | None]:
    return chance.choice(
        ((b"", None), (b"{}", JSON), (chance.randbytes(50), None), (_text(chance, _odd(chance)), JSON))
    )


_BODIES: dict[str, Callable[[Random], tuple[bytes, str | None]]] = {
    "job": _job,
    "array": _array,
    "csv": _csv,
    "results": _results,
    "any": _any,
}
