-- Lanes: where queued jobs wait.
--@include clock
--@include records
--@include events
--@include rq
--@include attempts
--@include kinds

local function ring_bell(lane)
  local bell = const.BELL .. kind_of(lane)
  if redis.call('EXISTS', bell) == 0 then redis.call('RPUSH', bell, 1) end
end

-- Ids into their owner's list: at the end, or at the front one that waited there before.
local function push(lane, owner, front, ...)
  if redis.call('EXISTS', const.RING .. lane) == 0 then redis.call('HSET', const.SERVED, lane, seconds(now())) end
  redis.call('ZADD', const.RING .. lane, 'NX', redis.call('HGET', const.SERVED, 'turn') or 0, owner)
  redis.call(front and 'LPUSH' or 'RPUSH', const.RQ_QUEUE .. lane .. '-' .. owner, ...)
  mirror_queue(lane, owner)
  ring_bell(lane)
end

-- Out of whatever a queued job waits in.
local function unqueue(id)
  local lane, owner, leader = get(id, 'lane', 'owner', 'leader')
  redis.call('ZREM', const.DEADLINES, id)
  if leader then
    redis.call('SREM', const.FOLLOWERS .. leader, id)
    return
  end
  redis.call('ZREM', const.WAITING, id)
  if redis.call('ZREM', const.DELAYED, id) == 1 then return end
  local list = const.RQ_QUEUE .. lane .. '-' .. owner
  redis.call('LREM', list, 1, id)
  if redis.call('EXISTS', list) == 0 then redis.call('ZREM', const.RING .. lane, owner) end
end

local function enter_queue(id, front, delay, reason)
  local submitted_at, deadline, lane, owner = get(id, 'submitted_at', 'deadline', 'lane', 'owner')
  redis.call('HSET', const.JOB .. id, 'state', const.QUEUED)
  redis.call('ZADD', const.WAITING, submitted_at, id)
  if deadline then redis.call('ZADD', const.DEADLINES, deadline, id) end
  if delay > 0 then
    redis.call('ZADD', const.DELAYED, seconds(now() + delay), id)
  else
    push(lane, owner, front, id)
  end
  add_event(id, const.QUEUED, reason and 'reason', reason)
end

-- Out of the queue, until its owner resumes it.
local function pause(id)
  local deadline = get(id, 'deadline')
  redis.call('HSET', const.JOB .. id, 'state', const.PAUSED)
  redis.call('HDEL', const.JOB .. id, 'pausing')
  redis.call('SADD', const.PAUSED_TASKS, id)
  if deadline then redis.call('ZADD', const.DEADLINES, deadline, id) end
  add_event(id, const.PAUSED)
end

-- The attempt that runs is over, and its job goes back to the front of the queue, unless its owner pauses it.
local function requeue(id, delay, reason)
  local key = const.JOB .. id
  leave(id)
  redis.call('HDEL', key, 'started_at', 'worker', 'gpu_wait')
  local step, shards = get(id, 'step', 'shards')
  if not step and not shards then redis.call('HDEL', key, 'progress') end
  mirror_queued_again(id)
  if redis.call('HGET', key, 'pausing') then pause(id) else enter_queue(id, true, delay, reason) end
  return 'queued'
end

local function wake_delayed(till)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', const.DELAYED, '-inf', till or seconds(now()), 'LIMIT', 0, 64)) do
    redis.call('ZREM', const.DELAYED, id)
    local lane, owner = get(id, 'lane', 'owner')
    if lane then push(lane, owner, true, id) end
  end
end
