-- Take jobs from dead workers, expire late ones, wake those whose backoff is over, and forget old dead letters.
-- Arguments: the time after which leases are not judged, '1' if the clock has jumped, the longest lease, the error of a
--   job that is given up, the most jobs to end, then the names of dead workers.
-- Answer: {id, request, its MAC, attempt, 'queued' | 'dead' | 'gone'} of each job that was taken or has expired.
--@include returning
--@include shards

local jumped, longest, failure, most = ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local dead, ended, at = {}, {}, now()
local judge = at <= tonumber(ARGV[1])
for place = 6, #ARGV do dead[ARGV[place]] = true end
local leases = redis.call('ZRANGE', const.LEASES, 0, -1, 'WITHSCORES')
for place = #leases - 1, 1, -2 do  -- as finish does
  local id = leases[place]
  local state, worker, request, mac, attempt, lane = get(id, 'state', 'worker', 'request', 'mac', 'attempt', 'lane')
  local ends = tonumber(leases[place + 1])
  local late = judge and ends < at
  if ends > at + longest then  -- it began before the clock was set back
    redis.call('ZADD', const.LEASES, 'XX', seconds(at + longest), id)
  end
  if shard_of(id) and state == const.RUNNING then
    if late or dead[worker] then
      count('leases_expired_total')
      if is_needed(id) then reopen(id) else drop(id) end
    end
  elseif state ~= const.RUNNING or not lane then
    redis.call('ZREM', const.LEASES, id)  -- Redis lost the record, or another release wrote it: it must not stop us
  elseif #ended < most and (late or dead[worker]) then
    local why = dead[worker] and 'its worker is gone' or 'its worker did not renew its claim'
    count('leases_expired_total')
    table.insert(ended, {id, request, mac or '', tonumber(attempt), give_back(id, why, failure)})
  end
end
wake_delayed(jumped and '+inf')  -- how much of a backoff is over nobody knows then
local left = most - #ended
for _, id in ipairs(redis.call('ZRANGEBYSCORE', const.DEADLINES, '-inf', seconds(at), 'LIMIT', 0, left)) do
  local state, lane, request, mac, attempt = get(id, 'state', 'lane', 'request', 'mac', 'attempt')
  if (state == const.QUEUED or state == const.PAUSED) and lane then
    settle(id, const.EXPIRED)
    table.insert(ended, {id, request, mac or '', tonumber(attempt), 'gone'})
  else
    redis.call('ZREM', const.DEADLINES, id)
  end
end
local forgotten = seconds(at - const.DEAD_SECONDS)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', const.DEAD, '-inf', forgotten, 'LIMIT', 0, most)) do
  redis.call('ZREM', const.DEAD, id)
  if redis.call('EXISTS', const.JOB .. id) == 1 then
    release_inputs(id)
    redis.call('DEL', const.JOB .. id, const.EVENTS_OF .. id, const.PROGRESS_OF .. id)
  end
end
pcall(keep_counts)
return ended
