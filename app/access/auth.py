"""Authentication of requests: their API key, its scope, and a second check after a wait."""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import anyio.to_thread
from fastapi import Depends, Request

from warpdesk_server.app.access.keys import (
    LOCAL,
    NOBODY,
    TOKEN,
    Key,
    Scope,
    UnusableKeys,
    digest_of,
    read_keys,
    remember,
    require_key_file,
    stamp,
)
from warpdesk_server.app.access.local import require_local
from warpdesk_server.app.access.loopback import is_loopback
from warpdesk_server.app.kit.errors import Refusal
from warpdesk_server.app.kit.limits import Limits, network

log = logging.getLogger("warpdesk.api")


class Gate:
    """The authenticator: finds the API key of each request. Once a key file exists, even an empty one, requests need a
    key."""

    def __init__(self, path: Path, home: Path, host: str, failures: Limits) -> None:
        self._failures = failures  # requests that nobody knows, by the network they come from
        self._path, self._home = path, home
        require_key_file(path, home)
        self._stamp = stamp(path)
        self._keys = read_keys(path)
        self.open = self._stamp is None  # a file without keys is what revoking the last one leaves
        if self.open and not is_loopback(host):
            raise UnusableKeys(
                f"there are no API keys in {path} and {host} can be reached from other machines: "
                "create a key (warpdesk keys create) or bind to 127.0.0.1"
            )
        self._note()

    def all_keys(self) -> list[Key]:
        """The API keys that there are, the first created first."""
        return sorted(self._keys.values(), key=lambda key: key.created_at)

    def reload(self) -> None:
        """Read the API key file again if it changed. If it cannot be used, the earlier keys stay."""
        found = stamp(self._path)
        if found == self._stamp:
            return
        try:
            self._keys = read_keys(self._path)
        except UnusableKeys as error:
            log.error("the API keys were not reloaded: %s", error)
            return
        self._stamp = found
        self.open = self.open and found is None
        self._note()

    def _note(self) -> None:
        """Note in the home that an API key file exists. It may come from elsewhere than `create_key`, or from an
        older release."""
        if self._stamp is not None:
            try:
                remember(self._home)
            except OSError as error:
                log.warning("the note that API keys exist cannot be written: %s", error)

    async def identify(self, request: Request) -> Key:
        """The API key of a request; raises a 401 without one. While there are no keys, the service's own user is
        "local"."""
        if self.open:
            request.state.token = None, ""  # which lets it in nowhere, once there are keys
            await require_local(request)
            return Key(LOCAL, LOCAL, ("admin",), "", 0.0)
        token = token_of(request)
        match, digest = request.state.token = TOKEN.fullmatch(token), digest_of(token)
        until = self._until(match, digest)
        valid = match and until is not None and until > time.time()
        if not valid:  # a valid key is let in however many others are tried from the same address
            self.count_failure(request)
        if until is None and match:
            await anyio.to_thread.run_sync(self.reload)  # it may have been made a moment ago
            until = self._until(match, digest)
        if match and until is not None and until > time.time():
            return self._keys[match[1]]
        sentence = "The API key is not valid" if token else "Send an API key: Authorization: Bearer <key>"
        if until is not None:
            sentence = "The API key was rotated and this token of it has expired: use the one that replaced it"
        raise _unauthorized(sentence)

    def lets_in(self, request: Request) -> bool:
        """Whether an accepted request would still be accepted: its API key may be revoked by now, or its token have
        expired."""
        if self.open:
            return True
        match, digest = request.state.token
        until = self._until(match, digest)
        return match is not None and until is not None and until > time.time()

    def count_failure(self, request: Request) -> None:
        """Count a request without a valid API token. Raises a 429 if its address has sent too many."""
        self._failures.take(network(request.client.host if request.client else ""))

    def _until(self, match: re.Match[str] | None, digest: str) -> float | None:
        # Compared even when there is no such key, so that time does not tell which ids exist.
        key = self._keys.get(match[1]) if match else None
        return (key or NOBODY).until(digest)


def _unauthorized(sentence: str) -> Refusal:
    return Refusal("unauthorized", sentence, headers={"WWW-Authenticate": 'Bearer realm="warpdesk"'})


def token_of(request: Request) -> str:
    """The API token in a request's headers; empty if there is none."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return request.headers.get("x-api-key", "").strip()


def require(key: Key, scope: Scope, what: str) -> None:
    """Refuse a request if its API key lacks a scope; `what` begins the sentence."""
    if not key.allows(scope):
        have = ", ".join(key.scopes)
        raise Refusal("missing-scope", f"{what} needs the scope {scope!r}; the key has {have}")


class Needs:
    """A FastAPI dependency: the API key of the caller, which must have a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> Key:
        gate: Gate = request.app.state.gate
        key = await gate.identify(request)
        require(key, self.scope, "This")
        request.state.owner = key.id
        services, worker = request.app.state.services, "worker" in key.scopes
        if not worker:  # how often workers ask is set by the jobs they are given
            services.request_rate.take(key.id)
        if not hasattr(request.state, "shares"):
            under_way = services.under_way_of_workers if worker else services.under_way
            request.state.shares = [under_way.take(key.id)]  # until the request ends (`observe`)
        return key


def still(request: Request) -> Callable[[], bool]:
    """A function that says whether a request's API key is still accepted, checked again at each call."""
    gate: Gate = request.app.state.gate
    return lambda: gate.lets_in(request)


def require_still(request: Request) -> None:
    """Refuse a request whose API key was revoked, or whose token expired, while it waited."""
    if not still(request)():
        raise _unauthorized("The API key was revoked, or its token has expired, while the request waited")


submitter = Needs("submit")
Submitter = Annotated[Key, Depends(submitter)]
reader = Needs("read")
Reader = Annotated[Key, Depends(reader)]
Watcher = Annotated[Key, Depends(Needs("metrics"))]  # of the service, and so of what all keys do
Canceler = Annotated[Key, Depends(Needs("cancel"))]
Worker = Annotated[Key, Depends(Needs("worker"))]
