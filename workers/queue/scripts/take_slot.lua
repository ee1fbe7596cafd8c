-- Take a slot for a worker, or keep it.
-- Arguments: worker, the slot it has or '', milliseconds.
-- Answer: the slot it has now: the same, or the smallest that is free.

local worker, has, ttl = unpack(ARGV)
local slot = 0
if has ~= '' then
  local holder = redis.call('GET', const.SLOT .. has)
  if not holder or holder == worker then slot = tonumber(has) end
end
while true do
  local holder = redis.call('GET', const.SLOT .. slot)
  if not holder or holder == worker then break end
  slot = slot + 1
end
redis.call('SET', const.SLOT .. slot, worker, 'PX', ttl)
return slot
