"""Whether the API listens, or a caller comes, on this machine's loopback."""

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=16)
def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback: without API keys, nobody else is served."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
