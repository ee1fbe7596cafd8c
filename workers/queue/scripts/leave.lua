-- End a worker's wait to be handed a job.
-- Arguments: worker, digest of the token of the claim with which it waited.
-- Answer: what it was handed meanwhile, as claim answers.
--@include claiming

local worker, token = unpack(ARGV)
redis.call('ZREM', const.IDLE, worker)
redis.call('DEL', const.HANDED .. worker)
return remembered(worker, token) or {}
