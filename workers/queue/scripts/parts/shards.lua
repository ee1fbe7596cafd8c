-- Shards of a job that runs: each is a record of its own, "<job>:<number>", with the claim of whoever computes it.
--@include clock
--@include records
--@include attempts
--@include lanes
--@include events

-- The job of a shard and its number; nil for a job.
local function shard_of(id)
  return string.match(id, '^(.+):(%d+)$')
end

local function open_key(job)
  return const.JOB .. job .. ':open'
end

-- A shard that nobody computes. Workers beside the one that has the job may take those of score 0. Those of score 1
-- ended an attempt before, or could not be merged, and are left to that one, whose attempts count as the job's.
local function set_open(job, number, alone)
  redis.call('ZADD', open_key(job), alone and 1 or 0, string.format('%04d', number))
  redis.call('EXPIRE', open_key(job), const.CLOSED_SECONDS)  -- the release before does not delete it with its job
end

-- Whether the job of a shard may still need it. The release before ends jobs without a word of their shards.
local function is_needed(id)
  local state, number_of = get(shard_of(id), 'state', 'shards')
  return number_of and (state == const.RUNNING or state == const.QUEUED)
end

local function drop(id)
  redis.call('ZREM', const.LEASES, id)
  redis.call('DEL', const.JOB .. id)
end

-- Say or stop saying that others may compute shards of a job.
local function offer(job)
  local state, lane = get(job, 'state', 'lane')
  local ring = const.RING .. 'shards:' .. lane
  local open = redis.call('ZRANGEBYSCORE', open_key(job), 0, 0, 'LIMIT', 0, 1)
  if state == const.RUNNING and #open > 0 then
    redis.call('ZADD', ring, 'NX', seconds(now()), job)
    ring_bell(lane)
  else
    redis.call('ZREM', ring, job)
  end
end

-- Cut a job that has just begun into shards, or into another number of them.
local function cut(job, number_of)
  forget_shards(job)
  redis.call('HSET', const.JOB .. job, 'shards', number_of)
  for number = 0, number_of - 1 do set_open(job, number) end
end

-- Have a worker compute a shard.
local function take_shard(job, number, worker, process, token, lease)
  local id, at = job .. ':' .. tonumber(number), now()
  local key, on_gpu, number_of, lead = const.JOB .. id, get(job, 'on_gpu', 'shards', 'worker')
  redis.call('ZREM', open_key(job), number)
  local attempt = redis.call('HINCRBY', key, 'attempt', 1)
  redis.call('HSET', key, 'state', const.RUNNING, 'claim', attempt .. ' ' .. token, 'worker', worker, 'process', process,
    'started_at', seconds(at), 'age', 0)
  if on_gpu then redis.call('HSET', key, 'on_gpu', tonumber(on_gpu) / tonumber(number_of)) end
  redis.call('EXPIRE', key, const.CLOSED_SECONDS)  -- as in `set_open`
  redis.call('ZADD', const.LEASES, seconds(at + tonumber(lease)), id)
  if worker == lead then redis.call('ZADD', const.RING .. 'led', seconds(at), job) end
  offer(job)
  return id, attempt
end

-- The attempt at a shard is over, and another may begin; `alone`: only by the worker that has the job.
local function reopen(id, alone)
  local job, number = shard_of(id)
  redis.call('ZREM', const.LEASES, id)
  redis.call('HSET', const.JOB .. id, 'state', const.QUEUED)
  set_open(job, number, alone or tonumber(get(id, 'attempt') or 0) >= const.MAX_STRIKES)
  offer(job)
end

-- What a shard gave cannot be merged: the worker that has the job computes it.
local function compute_again(id)
  if get(id, 'state') ~= const.SUCCEEDED then return end
  redis.call('HINCRBY', const.JOB .. shard_of(id), 'shards_done', -1)
  reopen(id, true)
end

local function complete(id, provenance)
  local job = shard_of(id)
  redis.call('ZREM', const.LEASES, id)
  redis.call('HSET', const.JOB .. id, 'state', const.SUCCEEDED, 'provenance', provenance)
  local done, number_of = redis.call('HINCRBY', const.JOB .. job, 'shards_done', 1), get(job, 'shards')
  note_progress(job, string.format('%.4f', done / number_of))
end

-- End an attempt at a shard, as FINISH answers it.
local function finish_shard(id, attempt, digest, how, provenance)
  if runs(id, attempt, digest) then
    if not is_needed(id) then
      drop(id)
      return 'stale'
    end
    if how == const.SUCCEEDED then
      complete(id, provenance)
      return 'done'
    end
    reopen(id, how ~= 'returned')
    return 'queued'
  end
  local state, claim = get(id, 'state', 'claim')
  if claim ~= attempt .. ' ' .. digest then return 'stale' end
  if state == const.SUCCEEDED and how == const.SUCCEEDED then return 'done' end  -- again, after a lost reply
  return state == const.QUEUED and how ~= const.SUCCEEDED and 'queued' or 'stale'
end

-- Whether a worker without a GPU, which leaves jobs to those that have one, computes a shard before these are through
-- with all that are open.
local function helps_gpus(job, open)
  local on_gpu, on_cpu = get(job, 'on_gpu', 'on_cpu')
  if on_cpu and tonumber(on_cpu) == 0 then return true end  -- it asks for a CPU
  return on_gpu and on_cpu and tonumber(on_cpu) <= tonumber(on_gpu) * open
end

-- A shard of a job that others compute too, for a worker that finds nothing in the queue: of each priority of that job
-- which was helped the longest ago.
local function shard_to_help(kinds, spares)
  for _, priority in ipairs(const.PRIORITIES) do
    for kind in string.gmatch(kinds, '%S+') do
      local ring = const.RING .. 'shards:' .. lane_of(priority, kind)
      for _, job in ipairs(redis.call('ZRANGE', ring, 0, const.OWNERS - 1)) do
        local open = redis.call('ZRANGEBYSCORE', open_key(job), 0, 0)
        if #open == 0 or get(job, 'state') ~= const.RUNNING then
          redis.call('ZREM', ring, job)
        elseif not spares or helps_gpus(job, #open) then
          redis.call('ZADD', ring, seconds(now()), job)
          return job, open[1]
        end
      end
    end
  end
end

-- The shard that a job's lead has been computing for much longer than any other worker did one; nil where it has none, or
-- where no other worker is through with one. Ages are counted by RENEW: the release before does not.
local function slow_shard(job, lead, number_of)
  local own, waited, slowest = nil, nil, nil
  for number = 0, number_of - 1 do
    local id = job .. ':' .. number
    local state, worker, age = get(id, 'state', 'worker', 'age')
    if age and state == const.RUNNING and worker == lead then
      own, waited = id, tonumber(age)
    elseif age and state == const.SUCCEEDED and worker ~= lead then
      slowest = math.max(slowest or 0, tonumber(age))
    end
  end
  -- What has an age of 1 may have taken nearly two seconds.
  if own and slowest and waited > const.PATIENCE_TIMES * (slowest + 1) then return own end
end

-- Take a job from its lead, which is slow, for a worker that finds neither a job nor a shard. Its shards stay, and it has
-- no strike. Not for ever: what is slow everywhere is not the leads' fault.
-- Answer: the job, which is at the front of its queue, its lane and its owner; nil if no lead is slow.
local function overtake(worker, kinds)
  local led = const.RING .. 'led'
  for _, job in ipairs(redis.call('ZRANGE', led, 0, const.OWNERS - 1)) do
    local state, lane, owner, lead, number_of, overtaken, pausing, deadline = get(job, 'state', 'lane', 'owner',
      'worker', 'shards', 'overtaken', 'pausing', 'deadline')
    if state ~= const.RUNNING or not number_of then
      redis.call('ZREM', led, job)
    elseif lead ~= worker and is_of(kinds, lane) and tonumber(overtaken or 0) < const.MAX_OVERTAKES and not pausing
      and not (deadline and tonumber(deadline) <= now())
      and #redis.call('ZRANGEBYSCORE', open_key(job), 0, 0) == 0 then
      local shard = slow_shard(job, lead, number_of)
      if shard then
        reopen(shard)
        redis.call('HINCRBY', const.JOB .. job, 'overtaken', 1)
        requeue(job, 0, 'its worker was slow: another one leads it')
        return job, lane, owner
      end
    end
  end
end
