-- Counters of transitions.

-- What this script counts, by field. It is kept where the next COUNT finds it: one hash costs each job half of what two
-- cost, and a small one less than a large one.
local counted = {}
-- The metric's name, then the values of its labels: the assembly compares their number with the declaration.
local function count(...)
  local field = table.concat({...}, '|')
  counted[field] = (counted[field] or 0) + 1
end

local function keep_counts()
  for field, amount in pairs(counted) do redis.call('HINCRBY', const.COUNTS_FRESH, field, amount) end
end

local queues = {}
local function queue_of(lane)
  queues[lane] = queues[lane] or string.match(lane, '^%a+')
  return queues[lane]
end

local function count_enqueued(lane, operation)
  count('jobs_enqueued_total', queue_of(lane), operation)
end
