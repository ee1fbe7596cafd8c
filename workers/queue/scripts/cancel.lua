-- Cancel a job for a worker.
-- Argument: id.
-- Answer: the state after, or nil for an unknown job.
--@include stopping

local state = stop(ARGV[1])
pcall(keep_counts)
return state
