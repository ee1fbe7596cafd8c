"""Times of a dataset's rows: whole nanoseconds since 1970 in UTC, and their text by ISO 8601."""

import re
from datetime import UTC, datetime, timedelta

# 1677-09-21 to 2262-04-11, as NumPy's datetime64[ns]. The least int64 is its "not a time".
FIRST, LAST = -(2**63) + 1, 2**63 - 1

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s?(?:[Zz]|([+-])(\d\d):?(\d\d))", re.ASCII
)


def parse(value: object) -> int:
    """A time of a dataset from JSON: whole nanoseconds since 1970, or text with a time zone. Raises ValueError."""
    if type(value) is int:
        return _within(value, str(value)[:40])
    if not isinstance(value, str):
        raise ValueError("A time is whole nanoseconds since 1970, or text such as 2026-11-27T21:00:00Z")
    match = _TEXT.fullmatch(value)
    if match is None:
        sentence = "is not a time with a zone: write 2026-11-27T21:00:00Z, or +01:00 instead of Z (%2B01:00 in a URL)"
        raise ValueError(f"{value[:40]!r} {sentence}")
    date, minute, second, fraction, sign, hours, minutes = match.groups()
    try:
        at = datetime.fromisoformat(f"{date}T{minute}:{second or '00'}+00:00")
    except ValueError as error:
        raise ValueError(f"{value[:40]!r} is not a time: {error}") from None
    offset = 0 if sign is None else int(f"{sign}1") * (60 * int(hours) + int(minutes))
    if sign is not None and (int(hours) > 23 or int(minutes) > 59):
        raise ValueError(f"{value[:40]!r} is not a time: its zone is {sign}{hours}:{minutes}")
    seconds = (at - _EPOCH) // timedelta(seconds=1) - 60 * offset
    return _within(seconds * _SECOND + int((fraction or "0").ljust(9, "0")), value[:40])


def text(time: int) -> str:
    """A time of a dataset as its text: with as many digits as it needs, by threes."""
    seconds, rest = divmod(time, _SECOND)
    fraction = f"{rest:09d}"
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    at = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    return f"{at}.{fraction}Z" if fraction else f"{at}Z"


def _within(time: int, shown: str) -> int:
    if not FIRST <= time <= LAST:
        raise ValueError(f"{shown} is outside what nanoseconds in 64 bits hold, {text(FIRST)} to {text(LAST)}")
    return time
