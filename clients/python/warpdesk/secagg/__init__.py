"""The client's side of secure aggregation: the service learns the sum of the clients' vectors, and no single vector.

    member = secagg.join("https://warpdesk.example", token)   # the creator of the round gave it to this client
    member.take_part(vector)

`take_part` publishes keys, shares secrets with neighbours, sends the masked vector, and then helps to remove the masks.
Each step waits for the other clients, until the round's deadlines. Each step is also a method, to be called in this
order: `publish_keys`, `send_shares`, `send_vector`, `unmask`.

A client trusts the service to follow the protocol, and checks what it can: it refuses to go on (`Refused`) where the
roster lacks its own keys or names a key twice, a threshold is half of a sharing set or less, the sum could overflow, a
share does not decrypt or is not the one its owner committed to, too few survive, or one client is told to be both here
and gone. It never masks two vectors with the same masks, and never helps to recover both secrets of anybody.

Bonawitz et al. (CCS 2017) over the graph of Bell et al. (CCS 2020). What a server of one's own needs of it is in
`warpdesk.secagg.masking`. Secure aggregation is not differential privacy: the sum is exact.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpdesk.errors import WarpdeskError
    from warpdesk.secagg.member import Member, Refused, join
    from warpdesk.secagg.quantisation import Quantisation

__all__ = ["Member", "Quantisation", "Refused", "WarpdeskError", "join"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'warpdesk.secagg' has no attribute {name!r}")
    try:
        from warpdesk.secagg import member
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        raise ModuleNotFoundError("secure aggregation needs cryptography: pip install 'warpdesk[secagg]'") from None
    return getattr(member, name)


def __dir__() -> list[str]:
    return __all__
