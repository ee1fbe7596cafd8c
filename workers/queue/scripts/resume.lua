-- Queue a paused task again, or let one that is about to be paused run on.
-- Argument: id.
-- Answer: the state after, or nil for an unknown job.
--@include lanes

local id = ARGV[1]
local state = get(id, 'state')
if state == const.RUNNING then redis.call('HDEL', const.JOB .. id, 'pausing') end
if state ~= const.PAUSED then return state end
redis.call('ZREM', const.DEADLINES, id)
redis.call('SREM', const.PAUSED_TASKS, id)
enter_queue(id, false, 0, 'it was paused and is resumed')
return const.QUEUED
