-- Queue a dead letter again.
-- Arguments: id, the request without its deadline, its MAC or '', then field and value of RQ's record.
-- Answer: 1, or 0 when it is no dead letter, or -1 when its inputs were not kept.
--@include lanes
--@include counting

local id = ARGV[1]
local key = const.JOB .. id
local dead, private, owner, inputs = get(id, 'dead', 'private', 'owner', 'inputs')
if not dead then
  local state, attempt, forgiven = get(id, 'state', 'attempt', 'forgiven')
  return state == const.QUEUED and attempt == forgiven and 1 or 0  -- the same again, after a lost reply
end
if private == '1' and inputs ~= '[]' then return -1 end
redis.call('ZREM', const.DEAD, id)
redis.call('HDEL', key, 'dead', 'strikes', 'apart', 'retries', 'error', 'ended_at', 'started_at', 'worker', 'progress',
  'deadline', 'same', 'pausing', 'gpu_wait', 'overtaken')
-- The fence goes on rising: its claims are counted from here.
redis.call('HSET', key, 'forgiven', redis.call('HGET', key, 'attempt'), 'request', ARGV[2],
  'mac', ARGV[3])
redis.call('PERSIST', key)
redis.call('PERSIST', const.EVENTS_OF .. id)
redis.call('PERSIST', const.PROGRESS_OF .. id)
redis.call('SADD', const.LIVE .. owner, id)
if is_task(redis.call('HGET', key, 'lane')) then redis.call('SADD', const.TASKS_OF .. owner, id) end
redis.call('HSET', const.RQ_JOB .. id, unpack(ARGV, 4))
enter_queue(id, true, 0, 'it was a dead letter and is run again')
count_enqueued(redis.call('HGET', key, 'lane'), operation_of(id))
pcall(keep_counts)
return 1
