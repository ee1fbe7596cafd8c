-- Expire a queued job whose deadline has passed.
-- Argument: id.
--@include settling

local id = ARGV[1]
if redis.call('HGET', const.JOB .. id, 'state') == const.QUEUED and overdue(id) then settle(id, const.EXPIRED) end
pcall(keep_counts)
