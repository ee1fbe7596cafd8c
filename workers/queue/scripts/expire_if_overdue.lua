-- Expire a queued or paused job whose deadline has passed.
-- Argument: id.
--@include settling

local id = ARGV[1]
local state = redis.call('HGET', const.JOB .. id, 'state')
if (state == const.QUEUED or state == const.PAUSED) and overdue(id) then settle(id, const.EXPIRED) end
pcall(keep_counts)
