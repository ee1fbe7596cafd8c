"""Read a request's body without ever holding more of it than allowed, and the headers that say what is wanted."""

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

# Bytes that are cut into strings and what is between them in one go, while no other thread of this process can run.
_PIECE = 64 << 10


def declared_length(request: Request) -> int | None:
    """Content-Length, None for a chunked body."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def require_length(request: Request, limit: int) -> None:
    """Refuse a body that says it is over the limit before a byte of it is read."""
    length = declared_length(request)
    if length is not None and length > limit:
        raise Refusal("body-too-large", f"The body is {length} bytes; the limit is {limit}")


def room(request: Request, limit: int, supply: limits.Shares | None = None) -> limits.Share:
    """A share of the memory for bodies, or of `supply`, of the declared length. It counts until it is closed."""
    require_length(request, limit)
    buffers = supply or request.app.state.services.buffers
    share: limits.Share = buffers.take(sender(request), declared_length(request) or 0)
    return share


async def read(request: Request, limit: int, share: limits.Share) -> bytes:
    """The whole body, refused as soon as it passes the limit, or its caller holds too many bytes of bodies at once."""
    body = bytearray()
    async for piece in request.stream():
        if len(body) + len(piece) > limit:
            raise Refusal("body-too-large", f"The body is over the limit of {limit} bytes")
        body += piece
        if len(body) > share.amount:
            share.grow(len(body) - share.amount)
    return bytes(body)


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone. Its body has been read, or is not wanted."""
    while (await receive())["type"] != "http.disconnect":
        pass


def sender(request: Request) -> str:
    """Who a body counts for: the caller's key, or the address of a caller without one."""
    owner: str | None = getattr(request.state, "owner", None)
    return owner or network(request.client.host if request.client else "")


async def read_json(
    request: Request,
    limit: int,
    form: Callable[[bytes], T],
    *,
    keys: int = limits.JSON_KEYS,
    small: int = limits.JSON_SMALL,
) -> T:
    """What `form` makes of a body of JSON (RFC 8259): UTF-8, no NaN, at most 200 deep, no key twice in an object.

    `form` parses it, and may judge it. A body of too many parts is refused before that. One of more than `small` bytes
    is looked at in a thread, few at once, and callers have their turns.
    """
    require_media_type(request, "application/json")
    services = request.app.state.services
    values = limits.JSON_VALUES * services.settings.max_inline_numbers + 2 * keys

    def formed(body: bytes) -> T:
        _require_few_parts(body, keys, values)
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
    """Refuse what would become too many objects, by counting the marks of JSON that stand outside of strings.

    So the tree that is parsed has a bounded size, whatever the body's, and so has the list of what is wrong in it.
    """
    if body.count(b":") <= keys and sum(map(body.count, (b",", b"[", b"{"))) <= values:
        return
    # Without what is escaped, every second part between quotes is a string. Outside of strings nothing may be escaped:
    # the parser stops there, whatever is counted after it.
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
    """What was sent as this model, or the refusal with what is wrong in it, the names of places in `omit` left out."""
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        if (count := error.error_count()) > limits.PROBLEMS:
            raise refuse_at("invalid-request", "", f"{count} things are wrong") from None
        problems, count = problems_of(error.errors(include_url=False), omit=omit)
        raise Refusal("invalid-request", errors.sentence_of(problems, count), *problems) from None


def parse(body: bytes) -> object:
    # The parser of pydantic. Its wrapper there lets the last of two equal keys win, and offers no choice.
    return jiter.from_json(body, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)


def require_media_type(request: Request, *taken: str) -> str:
    """The body's media type, without its parameters, if it is one of `taken` and the body is not compressed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Refusal("unsupported-media-type", f"Send the body as it is; Content-Encoding is {encoding[:40]!r}")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in taken:
        got = f"got {media_type!r}" if media_type else "there is no Content-Type"
        raise Refusal("unsupported-media-type", f"Send {' or '.join(taken)}; {got}")
    return media_type


def negotiate(request: Request, *offered: str) -> str:
    """The offered media type the caller likes best (RFC 9110 section 12.5.1), the first one where it does not say."""
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
        raise Refusal("not-acceptable", f"This can be given as {' or '.join(offered)}; Accept is {header[:200]!r}")
    return best


def _accepted_type(part: str) -> tuple[str, float]:
    media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            return media_type, float(value) if re.fullmatch(r"\s*[01](\.\d{0,3})?\s*", value) else 0.0
    return media_type, 1.0


def preferred_wait(request: Request, longest: int) -> int | None:
    """Seconds of `Prefer: wait=N` (RFC 7240), at most `longest`; a preference that makes no sense is ignored."""
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            seconds = value.strip().strip('"')
            return min(int(seconds[:9]), longest) if seconds.isascii() and seconds.isdigit() else None
    return None
