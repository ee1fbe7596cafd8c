-- Claim jobs for a worker.
-- Arguments: worker, process, digest of this claim's token, lease seconds, kinds of work, the time as RQ writes it,
--   '1' if the worker waits to be handed a job where there is none now, key or '' for any, most items, most bytes
--   (both of a claim for a key), workers with a GPU to which it leaves what ends sooner there, of a worker of tasks those
--   that it can run (' a b ', '' for all).
-- Answer: why the batch ends, the time, then of each job {id, request, its MAC, attempt, strikes, submitted at, started
--   at, attached inputs if it has any or if more follows, its wait for a GPU (-1: not known) if that is why this worker has it}; the
--   times are '' where none are counted. {} when there is nothing to claim.
--@include claiming

local worker, process, token, lease, kinds, rq_now, waits, only, items, bytes, gpus, tasks = unpack(ARGV)
redis.call('DEL', const.HANDED .. worker)
local before = remembered(worker, token)
-- The same claim again, after a lost reply. One that waits goes on waiting where what it was handed was taken back.
if before and (#before > 2 or waits ~= '1') then
  redis.call('ZREM', const.IDLE, worker)
  ring_for_others(kinds)
  return before
end
wake_delayed()
local wish = {worker = worker, process = process, token = token, lease = lease, kinds = kinds, only = only,
  items = items, bytes = bytes, gpus = gpus, tasks = tasks}
local answer = claim(wish, rq_now)
if #answer == 0 and waits == '1' then
  local waiting = redis.call('HGET', const.WISHES, worker)
  if not waiting or cjson.decode(waiting).token ~= token then
    redis.call('HSET', const.WISHES, worker, cjson.encode(wish))
  end
  redis.call('ZADD', const.IDLE, seconds(now()), worker)
else
  redis.call('ZREM', const.IDLE, worker)
end
pcall(keep_counts)
return answer
