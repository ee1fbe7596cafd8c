-- Final states: of a job, and of the jobs that it computes for.
--@include clock
--@include records
--@include counting
--@include events
--@include rq
--@include lanes
--@include attempts

local function count_ending(lane, operation, state, dead, failure)
  local queue, reason = queue_of(lane), ''
  if state == const.FAILED and failure then reason = cjson.decode(failure).code or '' end
  count('jobs_finished_total', queue, operation, state, reason)
  if state == const.FAILED then count('job_failures_total', queue, reason) end
  if dead then count('jobs_dead_total', operation) end
end

-- Of jobs that another one was computed for: queue, state, submission, start. Its worker counts their times with its
-- own. Of private jobs none is counted, since a sampler's tells of its noise, nor of dead letters that were run again,
-- whose times are the operator's.
local followed = {}
local function note_times(id, state)
  local lane, private, forgiven, submitted, started = get(id, 'lane', 'private', 'forgiven', 'submitted_at',
    'started_at')
  if private == '1' or forgiven or not started then return end
  followed[#followed + 1] = {queue_of(lane), state, submitted, started}
end

-- Enter a final state and tell whoever waits. A dead letter keeps its inputs, unless they are private.
local function settle_one(id, state, dead)
  local key = const.JOB .. id
  local before, lane, owner, result_ttl, private, operation, failure = get(id, 'state', 'lane', 'owner', 'result_ttl',
    'private', 'operation', 'error')
  count_ending(lane, operation or 'other', state, dead, failure)
  if get(id, 'shards') then forget_shards(id) end
  if before == const.RUNNING then
    leave(id)
  else
    unqueue(id)
    mirror_queue(lane, owner)
  end
  redis.call('HSET', key, 'state', state, 'ended_at', seconds(now()))
  if state == const.SUCCEEDED then
    redis.call('HSET', key, 'progress', 1, 'result_expires_at', seconds(now() + tonumber(result_ttl)))
  end
  redis.call('SREM', const.LIVE .. owner, id)
  redis.call('SREM', const.TASKS_OF .. owner, id)
  if is_task(lane) then redis.call('SREM', const.PAUSED_TASKS, id) end
  mirror_settled(id)
  if dead then
    redis.call('HSET', key, 'dead', 1)
    redis.call('ZADD', const.DEAD, seconds(now()), id)
  end
  if not dead or private == '1' then release_inputs(id) end
  if not dead then redis.call('HDEL', key, 'attached') end
  if not dead then keep_for(id, math.ceil(tonumber(result_ttl)) + const.TOMBSTONE_SECONDS) end
  add_event(id, state)
end

local function overdue(id)
  local deadline = redis.call('HGET', const.JOB .. id, 'deadline')
  return deadline and tonumber(deadline) <= now()
end

-- The same for a job and those it computes for. Where it was stopped rather than done, the first of them takes over.
local function settle(id, state, dead)
  local owner, same, attached = get(id, 'owner', 'same', 'attached')
  settle_one(id, state, dead)
  if not same then return end
  local leader = const.SAME .. owner .. ':' .. same
  if redis.call('GET', leader) == id then redis.call('DEL', leader) end
  local followers = redis.call('SMEMBERS', const.FOLLOWERS .. id)
  redis.call('DEL', const.FOLLOWERS .. id)
  if #followers == 0 then return end
  table.sort(followers)
  if state == const.CANCELED or state == const.EXPIRED then
    local heir = table.remove(followers, 1)
    redis.call('HDEL', const.JOB .. heir, 'leader', 'progress')
    if attached then redis.call('HSET', const.JOB .. heir, 'attached', attached) end
    redis.call('SET', leader, heir)
    for _, follower in ipairs(followers) do
      redis.call('HSET', const.JOB .. follower, 'leader', heir)
      redis.call('SADD', const.FOLLOWERS .. heir, follower)
    end
    enter_queue(heir, true, 0, 'the identical job that computed for it was ' .. state)
    return
  end
  local result, provenance, failure, started = get(id, 'result', 'provenance', 'error', 'started_at')
  for _, follower in ipairs(followers) do
    if overdue(follower) then
      settle_one(follower, const.EXPIRED, false)
    else
      local given = {'coalesced', 1}
      for name, value in pairs({result = result, provenance = provenance, error = failure, started_at = started}) do
        if value then table.insert(given, name) table.insert(given, value) end
      end
      redis.call('HSET', const.JOB .. follower, unpack(given))
      if result then redis.call('SADD', const.SHARED .. result, id, follower) end
      count('jobs_coalesced_total', operation_of(follower))
      settle_one(follower, state, false)
      if not dead then note_times(follower, state) end
    end
  end
  if result then redis.call('EXPIRE', const.SHARED .. result, redis.call('TTL', const.JOB .. id)) end
end
