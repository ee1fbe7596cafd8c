-- Attempts that ended without an outcome: their job is queued again, or given up.
--@include attempts
--@include settling

-- Back to the front of the queue, or given up: what is run again for ever takes the place of others.
local function again(id, delay, reason, failure)
  local key = const.JOB .. id
  if tonumber(redis.call('HGET', key, 'strikes') or 0) >= const.MAX_STRIKES or claims(id) >= const.MAX_ATTEMPTS then
    redis.call('HSET', key, 'error', failure)
    settle(id, const.FAILED, true)
    return 'dead'
  end
  leave(id)
  redis.call('HDEL', key, 'started_at', 'worker', 'gpu_wait')
  if not redis.call('HGET', key, 'step') then redis.call('HDEL', key, 'progress') end
  mirror_queued_again(id)
  if redis.call('HGET', key, 'pausing') then pause(id) else enter_queue(id, true, delay, reason) end
  return 'queued'
end

-- Its worker is gone or gives it back. That is not the job's fault: only from the third time on it has to wait.
local function give_back(id, reason, failure)
  local so_far = claims(id)
  return again(id, so_far < 3 and 0 or math.min(8, 0.5 * 2 ^ (so_far - 3)), reason, failure)
end
