-- Cancel a job for the API.
-- Argument: id.
-- Answer: the state after, or nil for an unknown job.
--@include stopping

local before = get(ARGV[1], 'state')
if before == const.QUEUED or before == const.RUNNING or before == const.PAUSED then close(ARGV[1]) end
local state = stop(ARGV[1])
pcall(keep_counts)
return state
