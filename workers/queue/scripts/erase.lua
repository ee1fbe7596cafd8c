-- Cancel a job if it is live, and erase what was submitted and computed.
-- Arguments: id, the request without parameters and inputs, its MAC or '', the inputs that it had.
-- Answer: the result if no other job has it, or '', then the array ids that no live job of the owner reads.
--@include stopping

local id, stripped, mac, inputs = unpack(ARGV)
local key, remembered = const.JOB .. id, const.ERASED .. id
local owner = get(id, 'owner')
if not owner then return {''} end
close(id)
stop(id)
pcall(keep_counts)
local result, dead, result_ttl = get(id, 'result', 'dead', 'result_ttl')
release_inputs(id)
if result then redis.call('SREM', const.SHARED .. result, id) end
local before = redis.call('GET', remembered)
if before then
  inputs, result = unpack(cjson.decode(before))  -- the same again, after a lost reply
else
  result = result or ''
  redis.call('SET', remembered, cjson.encode({inputs, result}), 'EX', const.ERASED_SECONDS)
end
local answer = {redis.call('EXISTS', const.SHARED .. result) == 1 and '' or result}
for _, array in ipairs(cjson.decode(inputs)) do
  if redis.call('SCARD', const.USES .. owner .. ':' .. array) == 0 then table.insert(answer, array) end
end
-- Errors quote data, and digests of parameters can be guessed.
redis.call('HDEL', key, 'result', 'result_expires_at', 'error', 'provenance', 'progress', 'dead', 'key', 'same', 'size',
  'attached', 'step', 'checkpoint', 'on_gpu', 'on_cpu', 'gpu_wait')
redis.call('HSET', key, 'request', stripped, 'mac', mac, 'inputs', '[]', 'erased', 1)
redis.call('DEL', const.EVENTS_OF .. id, const.PROGRESS_OF .. id)
if dead then
  redis.call('ZREM', const.DEAD, id)
  keep_for(id, math.ceil(tonumber(result_ttl)) + const.TOMBSTONE_SECONDS)
end
return answer
