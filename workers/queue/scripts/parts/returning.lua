-- Attempts that ended without an outcome: their job is queued again, or given up.
--@include attempts
--@include settling

-- How often it was claimed, without the claims of leads that were slow.
local function tries_of(id)
  return claims(id) - tonumber(get(id, 'overtaken') or 0)
end

-- Back to the front of the queue, or given up: what is run again for ever takes the place of others.
local function again(id, delay, reason, failure)
  local key = const.JOB .. id
  if tonumber(redis.call('HGET', key, 'strikes') or 0) >= const.MAX_STRIKES or tries_of(id) >= const.MAX_ATTEMPTS then
    redis.call('HSET', key, 'error', failure)
    settle(id, const.FAILED, true)
    return 'dead'
  end
  return requeue(id, delay, reason)
end

-- Its worker is gone or gives it back. That is not the job's fault: only from the third time on it has to wait.
local function give_back(id, reason, failure)
  local so_far = tries_of(id)
  return again(id, so_far < 3 and 0 or math.min(8, 0.5 * 2 ^ (so_far - 3)), reason, failure)
end
