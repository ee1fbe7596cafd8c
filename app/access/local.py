"""Access control of a service without keys: it serves its own user on this machine, and nobody else."""

import os
import re

from fastapi import Request

from warpdesk_server.app.access.loopback import is_loopback
from warpdesk_server.app.access.peers import user_of
from warpdesk_server.app.kit.errors import Refusal

# Names of headers that proxies add to what they forward.
_FORWARDED = re.compile(
    r"forwarded(?:-.+)?|via|cdn-loop|x-forwarded|x-scheme|(?:cf|fly|fastly)-.+|(?:.+-)?client-?ip"
    r"|x-(?:amzn|appengine|arr|azure|bluecoat|envoy|forwarded|nginx|original|proxyuser|real|remote)-.+"
)


async def require_local(request: Request) -> None:
    """While there are no API keys, refuse requests from other machines, other users, proxies, and pages of other sites.

    A proxy that adds no header is detected by its user, if it runs as another one, as a system's proxy does. A page of
    another site reaches 127.0.0.1 by the address, or by a name of its own (DNS rebinding).
    """
    headers = request.headers
    host = headers.get("host", "").strip().lower()
    name = host.rsplit(":", 1)[0] if re.search(r":\d+$", host) else host
    peer = request.client.host if request.client else "127.0.0.1"  # none: a unix socket
    why = None
    if (header := next(filter(_FORWARDED.fullmatch, headers), None)) is not None:
        why = f"a proxy forwards this request: it has the header {header!r}"
    elif not is_loopback(name) or not (is_loopback(peer) or not peer):
        why = f"the host asked for is {name!r}"
    elif request.scope["http_version"] == "1.0":  # what nginx before 1.29.7 speaks unless told otherwise
        why = "a proxy may forward this request: it is HTTP/1.0"
    elif any(origin.partition("://")[2] != host for origin in headers.getlist("origin")):
        why = f"the page that asks is of the origin {headers['origin']!r}"
    elif (site := headers.get("sec-fetch-site", "none")) not in ("none", "same-origin"):
        why = f"the page that asks is of another site (Sec-Fetch-Site: {site!r})"
    elif request.client and (user := await user_of(request)) != os.geteuid():  # (a unix socket has a mode of its own)
        why = f"the user that asks is {'not known' if user is None else f'another (uid {user})'}"
    if why is not None:
        raise Refusal(
            "foreign-host",
            f"No API keys exist, so only the service's own user on this machine is served; {why}. "
            "Create a key: warpdesk keys create NAME",
        )
