-- End attempts, each by itself.
-- Arguments: worker or '', '1' if it is idle after this, then of each: id, attempt, digest of its claim's token, how,
--   value, provenance or '', reason, delays. `how` is one of
--     succeeded  value: the result's name
--     failed     value: the error
--     expired
--     returned   not the job's fault; value: the error if it is given up, reason: why
--     apart      as returned, and it is claimed alone from now on: one of several jobs ended the child
--     struck     its own fault; value and reason as of returned
--     retry      a fault that may pass; the same, delays: seconds before each next try, separated by spaces
-- Answer: 'done', 'queued', 'dead' or 'stale' of each, the time, then {queue, state, submission, start} of each job
--   that one of these was computed for.
--@include returning
--@include shards

local worker, idle = ARGV[1], ARGV[2]
local answer, busy, good, bad = {}, 0, 0, 0

local function finish(id, attempt, digest, how, value, provenance, reason, delays)
  if shard_of(id) then return finish_shard(id, attempt, digest, how, provenance) end
  local key = const.JOB .. id
  local field = how == const.SUCCEEDED and 'result' or 'error'
  if not runs(id, attempt, digest) then
    local state, current, before, dead, claim = get(id, 'state', 'attempt', field, 'dead', 'claim')
    -- The same finish again, after a lost reply, is the same commit.
    if current ~= attempt or claim ~= attempt .. ' ' .. digest then return 'stale' end
    if state == how and (how == const.EXPIRED or before == value) then return 'done' end
    if how ~= 'returned' and how ~= 'apart' and how ~= 'struck' and how ~= 'retry' then return 'stale' end
    if state == const.QUEUED or state == const.PAUSED then return 'queued' end
    if state == const.FAILED and before == value then return dead and 'dead' or 'done' end
    return 'stale'
  end
  -- First of all: a Redis that is full lets a script go on once it has deleted something.
  redis.call('ZREM', const.LEASES, id)
  local private, started = get(id, 'private', 'started_at')
  if private ~= '1' then busy = math.max(busy, now() - tonumber(started)) end  -- a sampler's time tells of its noise
  if how == const.SUCCEEDED then good = good + 1 else bad = bad + 1 end
  if how == const.EXPIRED then
    settle(id, how)
    return 'done'
  end
  if how == 'apart' then redis.call('HSET', key, 'apart', 1) end
  if how == 'returned' or how == 'apart' then return give_back(id, reason, value) end
  if how == 'struck' then
    redis.call('HINCRBY', key, 'strikes', 1)
    count('job_strikes_total', operation_of(id))
    return again(id, 0, reason, value)
  end
  if how == 'retry' then
    local tries, delay = redis.call('HINCRBY', key, 'retries', 1), nil
    for text in string.gmatch(delays, '%S+') do
      tries = tries - 1
      if tries == 0 then delay = tonumber(text) end
    end
    if delay then return again(id, delay, reason, value) end
    how = const.FAILED
  end
  redis.call('HSET', key, field, value)
  if provenance ~= '' then redis.call('HSET', key, 'provenance', provenance) end
  settle(id, how, false)
  return 'done'
end

for at = #ARGV - 7, 3, -8 do  -- from the last: what goes back to the front keeps its order
  table.insert(answer, 1, finish(unpack(ARGV, at, at + 7)))
end
pcall(keep_counts)
local shown = const.RQ_WORKER .. worker
if worker ~= '' and redis.call('EXISTS', shown) == 1 then
  if good > 0 then redis.call('HINCRBY', shown, 'successful_job_count', good) end
  if bad > 0 then redis.call('HINCRBY', shown, 'failed_job_count', bad) end
  redis.call('HINCRBYFLOAT', shown, 'total_working_time', seconds(busy))
  if idle == '1' then mirror_idle(worker) end
end
return {answer, seconds(now()), followed}
