-- Forbid that jobs are enqueued with an array, before the array is deleted.
-- Arguments: owner, array.
-- Answer: 1, or 0 when a live job reads it.

local owner, array = unpack(ARGV)
if redis.call('SCARD', const.USES .. owner .. ':' .. array) > 0 then return 0 end
redis.call('SET', const.FORBIDDEN .. owner .. ':' .. array, 1, 'EX', const.FORBIDDEN_SECONDS)
return 1
