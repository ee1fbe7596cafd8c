"""Everything in Redis at one time, for tests that look whether anything changed or was left."""

import json
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
return cjson.encode(answer)  -- redis-py reads one string sooner than very many
"""


class Snapshot:
    """Keys with their values: sorted sets are dictionaries of text, streams are lists of numbers and fields."""

    def __init__(self, connection: Redis) -> None:
        answer = cast(bytes, connection.eval(_EVERYTHING, 0)).decode("latin-1")
        found = json.loads(answer) if answer != "{}" else []
        self.keys = {key: _value(kind, value) for key, kind, _, value in found}
        self.lasting = {key for key, _, ttl, _ in found if ttl == -1}

    def members(self, key: str) -> set[str]:
        """Of a set or a sorted set, or none where there is no such key."""
        return set(self.keys.get(key, ()))


def _value(kind: str, value: Any) -> Any:
    if kind in ("hash", "zset"):
        return dict(zip(value[::2], value[1::2], strict=True))
    return set(value) if kind == "set" else value
