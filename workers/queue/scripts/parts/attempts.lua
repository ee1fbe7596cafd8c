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

-- End the attempt that runs: its lease, and what RQ shows of it.
local function leave(id)
  local lane, owner = get(id, 'lane', 'owner')
  redis.call('ZREM', const.LEASES, id)
  mirror_ended(id, lane, owner)
end
