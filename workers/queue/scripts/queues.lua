-- The number of jobs in each queue.
--@include kinds
-- Argument: the most ids to look at.
-- Answer: {queue, ids in its lists, ids that run, ids in a backoff, submission of the oldest in a list or ''} of each,
--   then the number of dead letters.

local most, queues, names = tonumber(ARGV[1]), {}, const.PRIORITIES
for _, name in ipairs(names) do
  local queue = {name, 0, 0, 0, ''}
  queues[name] = queue
  for _, kind in ipairs(const.KINDS) do
    local lane = lane_of(name, kind)
    for _, owner in ipairs(redis.call('ZRANGE', const.RING .. lane, 0, -1)) do
      local list = const.RQ_QUEUE .. lane .. '-' .. owner
      queue[2] = queue[2] + redis.call('LLEN', list)
      local first = redis.call('LINDEX', list, 0)
      local at = first and redis.call('HGET', const.JOB .. first, 'submitted_at')
      if at and (queue[5] == '' or tonumber(at) < tonumber(queue[5])) then queue[5] = at end
    end
  end
end
for place, key in pairs({[3] = const.LEASES, [4] = const.DELAYED}) do
  for _, id in ipairs(redis.call('ZRANGE', key, 0, most - 1)) do
    local lane = redis.call('HGET', const.JOB .. id, 'lane')
    local queue = lane and queues[string.match(lane, '^%a+')]
    if queue then queue[place] = queue[place] + 1 end
  end
end
local answer = {}
for _, name in ipairs(names) do table.insert(answer, queues[name]) end
return {answer, redis.call('ZCARD', const.DEAD)}
