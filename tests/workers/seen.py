"""Everything in Redis at one time, for tests that look whether anything changed or was left."""

from typing import Any, cast

from redis import Redis

_EVERYTHING = """
local reads = {string = {'GET'}, hash = {'HGETALL'}, list = {'LRANGE', 0, -1}, set = {'SMEMBERS'},
  zset = {'ZRANGE', 0, -1, 'WITHSCORES'}, stream = {'XRANGE', '-', '+'}}
local answer = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value = redis.call(reads[kind][1], key, unpack(reads[kind], 2))
  table.insert(answer, {key, kind, redis.call('TTL', key), value})
end
return answer
"""


class Seen:
    """Keys with their values: sorted sets are dictionaries of text, streams are lists of numbers and fields."""

    def __init__(self, connection: Redis) -> None:
        answer = cast(list[Any], connection.eval(_EVERYTHING, 0))
        self.keys = {key.decode(): _value(kind, _text(value)) for key, kind, _, value in answer}
        self.lasting = {key.decode() for key, _, ttl, _ in answer if ttl == -1}

    def members(self, key: str) -> set[str]:
        """Of a set or a sorted set, or none where there is no such key."""
        return set(self.keys.get(key, ()))


def _value(kind: bytes, value: Any) -> Any:
    if kind in (b"hash", b"zset"):
        return dict(zip(value[::2], value[1::2], strict=True))
    return set(value) if kind == b"set" else value


def _text(value: Any) -> Any:
    return [_text(one) for one in value] if isinstance(value, list) else value.decode("latin-1")
