-- Free a worker's slot, unless another worker has it by now.
-- Arguments: worker, slot.

local worker, slot = unpack(ARGV)
if redis.call('GET', const.SLOT .. slot) == worker then redis.call('DEL', const.SLOT .. slot) end
