-- Attempts: who runs a job, and how often it was claimed.
--@include records
--@include rq

-- True when the attempt is the one that runs now, by the claim whose token has this digest; any other is a stale fence.
-- The number alone tells not enough: a Redis that has lost its memory gives it twice.
local function runs(id, attempt, digest)
  local state, current, claim = get(id, 'state', 'attempt', 'claim')
  return state == const.RUNNING and current == attempt and claim == attempt .. ' ' .. digest
end

-- How often it was claimed, since it was run again as a dead letter if it was, and since a task's last new step.
local function claims(id)
  local attempt, forgiven, advanced = get(id, 'attempt', 'forgiven', 'advanced')
  return tonumber(attempt) - math.max(tonumber(forgiven or 0), tonumber(advanced or 0))
end

-- Forget that a job was cut into shards, and so whoever computes one.
local function forget_shards(id)
  for number = 0, tonumber(get(id, 'shards') or 0) - 1 do
    redis.call('DEL', const.JOB .. id .. ':' .. number)
    redis.call('ZREM', const.LEASES, id .. ':' .. number)
  end
  redis.call('DEL', const.JOB .. id .. ':open')
  redis.call('ZREM', const.RING .. 'led', id)
  redis.call('HDEL', const.JOB .. id, 'shards', 'shards_done')
end

-- End the attempt that runs: its lease, and what RQ shows of it. Its shards stay for the next one.
local function leave(id)
  local lane, owner = get(id, 'lane', 'owner')
  redis.call('ZREM', const.LEASES, id)
  redis.call('ZREM', const.RING .. 'shards:' .. lane, id)
  mirror_ended(id, lane, owner)
end
