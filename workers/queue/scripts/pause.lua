-- Pause a task.
-- Argument: id.
-- Answer: the state after, or nil for an unknown job. One that runs is paused by its worker, after a step.
--@include lanes

local id = ARGV[1]
local state, lane, owner = get(id, 'state', 'lane', 'owner')
if state == const.QUEUED then
  unqueue(id)
  mirror_queue(lane, owner)
  pause(id)
  return const.PAUSED
end
if state == const.RUNNING then redis.call('HSET', const.JOB .. id, 'pausing', 1) end
return state
