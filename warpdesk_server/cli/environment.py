"""The settings of a command, read from the environment."""

from typing import TYPE_CHECKING, TypeVar

from warpdesk.cli.command import Misconfigured

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from pydantic_settings import BaseSettings

S = TypeVar("S", bound="BaseSettings")


def read(settings: type[S]) -> S:
    """Read a command's settings from the environment variables. Raises Misconfigured."""
    from pydantic import ValidationError

    try:
        return settings()
    except ValidationError as error:
        wrong = (
            _wrong(entry, settings.model_config.get("env_prefix", "")) for entry in error.errors(include_url=False)
        )
        raise Misconfigured("; ".join(wrong)) from None


def require_redis_url(url: str) -> None:
    """Check that the Redis URL that a command read is valid. Unlike redis-py's traceback, Misconfigured holds no part
    of it."""
    from redis.connection import parse_url

    from warpdesk_server.workers.queue.sentinel import named

    try:
        if named(url) is None:
            parse_url(url)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise Misconfigured(
            "WARPDESK_REDIS_URL is not one such as redis://user:password@host:6379/0, or with Sentinels "
            "redis+sentinel://user:password@host:26379,host:26379/name/0; in a password /, #, ? and @ are written %2F, "
            "%23, %3F and %40"
        ) from None


def _wrong(entry: "ErrorDetails", prefix: str) -> str:
    """The error message of a command for one invalid setting.

    An error about several variables names them itself. Its input, every variable that is set, holds secrets.
    """
    if not entry["loc"]:
        return entry["msg"].removeprefix("Value error, ")
    return (
        f"{prefix}{entry['loc'][0]}".upper() + f" is {entry['input']!r}: {entry['msg'][:1].lower()}{entry['msg'][1:]}"
    )
