"""Request bodies, read within memory limits, and the request headers about media types and waiting."""

import re
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
import jiter
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from warpdesk_server.app.kit import errors, limits
from warpdesk_server.app.kit.errors import Refusal, refuse_at
from warpdesk_server.app.kit.limits import network
from warpdesk_server.kernels.problems import problems_of

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_TWICE = re.compile(r'Detected duplicate key (".*") (at line \d+ column \d+)', re.DOTALL)

# Bytes of a JSON body that are split at its quotes in one step. No other thread of this process runs in that time.
_PIECE = 64 << 10


def declared_length(request: Request) -> int | None:
    """The length of an HTTP request's body by Content-Length; None for a chunked body."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def require_length(request: Request, limit: int) -> None:
    """Refuse an HTTP request's body whose declared length is over the limit, before any of it is read."""
    length = declared_length(request)
    if length is not None and length > limit:
        raise Refusal("body-too-large", f"The body is {length} bytes; the limit is {limit}")


def room(request: Request, limit: int, supply: limits.Shares | None = None) -> limits.Share:
    """A share of the memory for HTTP request bodies, or of `supply`, of the declared length. Close it after use."""
    require_length(request, limit)
    buffers = supply or request.app.state.services.buffers
    share: limits.Share = buffers.take(sender(request), declared_length(request) or 0)
    return share


async def read(request: Request, limit: int, share: limits.Share) -> bytes:
    """Read the whole body of an HTTP request. It is refused as soon as it exceeds the limit, or its caller's share
    of memory."""
    body = bytearray()
    async for piece in request.stream():
        if len(body) + len(piece) > limit:
            raise Refusal("body-too-large", f"The body is over the limit of {limit} bytes")
        body += piece
        if len(body) > share.amount:
            share.grow(len(body) - share.amount)
    return bytes(body)


async def until_gone(receive: Receive) -> None:
    """Wait until the HTTP client disconnects. The rest of the request body, if any, is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass


def sender(request: Request) -> str:
    """The owner an HTTP request's body counts for: the caller's API key, or the network address of a caller without
    one."""
    owner: str | None = getattr(request.state, "owner", None)
    return owner or network(request.client.host if request.client else "")


async def read_json(
    request: Request,
    limit: int,
    form: Callable[[bytes], T],
    *,
    keys: int | Callable[[bytes], int] = limits.JSON_KEYS,
    values: int | None = None,
    small: int = limits.JSON_SMALL,
) -> T:
    """Read a JSON request body (RFC 8259) and return what `form` makes of it.

    `form` parses the body and may check it: UTF-8, no NaN, at most 200 levels deep, no duplicate key in an object. A
    body with too many parts is refused before. A body of more than `small` bytes is parsed in a thread, few at a time,
    and callers take turns.
    """
    require_media_type(request, "application/json")
    services = request.app.state.services

    def formed(body: bytes) -> T:
        most_keys = keys if isinstance(keys, int) else keys(body)
        most = limits.JSON_VALUES * services.settings.max_inline_numbers + 2 * most_keys if values is None else values
        _require_few_parts(body, most_keys, most)
        return form(body)

    with room(request, limit) as share:
        body = await read(request, limit, share)
        try:
            if len(body) <= small:
                return formed(body)
            async with services.json_turns.take(sender(request)):
                return await anyio.to_thread.run_sync(formed, body)
        except ValueError as error:
            twice = _TWICE.fullmatch(str(error))
            if twice:
                raise Refusal(
                    "duplicate-key", f"The key {twice[1][:80]} is given twice in one object, {twice[2]}"
                ) from None
            raise Refusal("malformed-json", f"The body of {len(body)} bytes is not JSON: {error}") from None


def _require_few_parts(body: bytes, keys: int, values: int) -> None:
    """Refuse a JSON body that would become too many Python objects: count its punctuation outside of strings.

    So the parsed tree has a bounded size, and so has the list of its errors.
    """
    if body.count(b":") <= keys and sum(map(body.count, (b",", b"[", b"{"))) <= values:
        return
    # With escapes removed, every second part between quotes is a string. An escape outside of a string is invalid: the
    # parser stops there, so a wrong count after it does not matter.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    colons = others = 0
    within = False
    for start in range(0, len(plain), _PIECE):
        parts = plain[start : start + _PIECE].split(b'"')
        marks = b'"'.join(parts[within::2])
        within ^= len(parts) % 2 == 0
        colons += marks.count(b":")
        others += sum(map(marks.count, (b",", b"[", b"{")))
        if colons > keys:
            raise refuse_at("invalid-request", "", f"The body has more than {keys} keys, which is the limit")
        if others > values:
            sentence = f"The body has more than {values} values and lists, which is the limit"
            raise refuse_at("invalid-request", "", f"{sentence}; upload arrays with PUT /v1/arrays")


def fitted(model: type[M], sent: object, omit: frozenset[str] = frozenset()) -> M:
    """The body of an HTTP request as an instance of `model`, or a refusal that lists its errors.

    Parts of an error's location that are in `omit` are left out.
    """
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        if (count := error.error_count()) > limits.PROBLEMS:
            raise refuse_at("invalid-request", "", f"The body has {count} errors") from None
        problems, count = problems_of(error.errors(include_url=False), omit=omit)
        raise Refusal("invalid-request", errors.sentence_of(problems, count), *problems) from None


def parse(body: bytes) -> object:
    """Parse the JSON body of an HTTP request. Raises ValueError for malformed JSON and for duplicate keys."""
    # pydantic's parser, called directly: through pydantic the last of two equal keys would win, without a choice.
    return jiter.from_json(body, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)


def require_media_type(request: Request, *taken: str) -> str:
    """The media type of an HTTP request's body, without parameters. Refused if not one of `taken`, or if it is
    compressed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Refusal(
            "unsupported-media-type", f"Send the body without compression; Content-Encoding is {encoding[:40]!r}"
        )
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in taken:
        got = f"got {media_type!r}" if media_type else "there is no Content-Type"
        raise Refusal("unsupported-media-type", f"Send {' or '.join(taken)}; {got}")
    return media_type


def negotiate(request: Request, *offered: str) -> str:
    """The offered media type that the Accept header prefers (RFC 9110 section 12.5.1); the first one without it."""
    header = ", ".join(request.headers.getlist("accept"))
    if not header.strip():
        return offered[0]
    accepted = [_accepted_type(part) for part in header.split(",") if part.strip()]

    def quality(media_type: str) -> tuple[float, int]:
        kind = media_type.partition("/")[0]
        for specificity, pattern in enumerate((media_type, f"{kind}/*", "*/*")):
            matching = [q for name, q in accepted if name == pattern]
            if matching:
                return max(matching), -specificity
        return 0.0, 0

    best = max(offered, key=quality)
    if quality(best)[0] <= 0:
        raise Refusal("not-acceptable", f"This is available as {' or '.join(offered)}; Accept is {header[:200]!r}")
    return best


def _accepted_type(part: str) -> tuple[str, float]:
    media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return media_type, float(value) if re.fullmatch(r"\s*[01](\.\d{0,3})?\s*", value) else 0.0
    return media_type, 1.0


def preferred_wait(request: Request, longest: int) -> int | None:
    """The seconds of the request header `Prefer: wait=N` (RFC 7240), at most `longest`; None if missing or invalid."""
    seconds = preference(request, "wait")
    return min(int(seconds[:9]), longest) if seconds.isascii() and seconds.isdigit() else None


def preference(request: Request, wanted: str) -> str:
    """The value of a preference in the request header `Prefer` (RFC 7240); empty if missing."""
    for given in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = given.partition(";")[0].partition("=")
        if name.strip().lower() == wanted:
            return value.strip().strip('"')
    return ""
