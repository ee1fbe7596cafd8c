"""The job's transitions as Lua: each is one atomic step in Redis, and all times come from Redis' clock.

Two sets of keys change together: our record, which is the truth, and what RQ keeps about the same job, so that `rq
info` shows the service as it is. RQ's key names are taken from RQ's own classes. Scripts are sent whole: Redis caches
them by digest, and a script named by digest alone would be unknown after a restart.
"""

from rq import Queue, Worker
from rq.command import PUBSUB_CHANNEL_TEMPLATE
from rq.executions import ExecutionRegistry
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.registry import StartedJobRegistry

from workers.protocol import DONE_CHANNEL, LEASES, QUEUE, job_key, owner_key, uses_key

RQ_QUEUE = f"{Queue.redis_queue_namespace_prefix}{QUEUE}"
RQ_INTERMEDIATE = IntermediateQueue.get_intermediate_queue_key(RQ_QUEUE)
RQ_STARTED = StartedJobRegistry.key_template.format(QUEUE)

_RQ_EXECUTION_SECONDS = 30 * 24 * 3600

# A record outlives its result by a day, so that a late question gets "the result has expired" and not "no such job".
# Redis must hold the records of every job of that time.
TOMBSTONE_SECONDS = 24 * 3600

_PRELUDE = f"""
local JOB, USES, LEASES = '{job_key("")}', '{uses_key("", "")[:-1]}', '{LEASES}'
local RQ_QUEUE, RQ_POPPED, RQ_STARTED = '{RQ_QUEUE}', '{RQ_INTERMEDIATE}', '{RQ_STARTED}'
local RQ_JOB, RQ_EXECUTION, RQ_WORKER = '{Job.key_for("")}', 'rq:execution:', '{Worker.redis_worker_namespace_prefix}'
local RQ_EXECUTIONS = '{ExecutionRegistry.key_template.format("")}'

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local function seconds(time)
  return string.format('%.6f', time)
end

local function forget_in_rq(id)
  redis.call('DEL', RQ_JOB .. id, RQ_JOB .. id .. ':dependents')
end

-- End the attempt that runs: its lease, and RQ's record of the execution.
local function leave(id)
  local execution, worker = unpack(redis.call('HMGET', JOB .. id, 'execution', 'worker'))
  if execution then
    redis.call('ZREM', RQ_STARTED, id .. ':' .. execution)
    redis.call('DEL', RQ_EXECUTION .. id .. ':' .. execution, RQ_EXECUTIONS .. id)
    redis.call('HDEL', JOB .. id, 'execution')
    if redis.call('EXISTS', RQ_WORKER .. worker) == 1 then
      redis.call('HSET', RQ_WORKER .. worker, 'state', 'idle', 'current_job_working_time', 0)
      redis.call('HDEL', RQ_WORKER .. worker, 'current_job')
    end
  end
  redis.call('ZREM', LEASES, id)
  redis.call('LREM', RQ_POPPED, 0, id)
end

-- Enter a final state and tell whoever waits.
local function settle(id, state)
  local key = JOB .. id
  leave(id)
  local owner, inputs, result_ttl = unpack(redis.call('HMGET', key, 'owner', 'inputs', 'result_ttl'))
  for _, array in ipairs(cjson.decode(inputs)) do
    redis.call('SREM', USES .. owner .. ':' .. array, id)
  end
  redis.call('HSET', key, 'state', state, 'ended_at', seconds(now()))
  redis.call('EXPIRE', key, math.ceil(tonumber(result_ttl)) + {TOMBSTONE_SECONDS})
  forget_in_rq(id)
  redis.call('PUBLISH', '{DONE_CHANNEL}', id)
end

-- True when the attempt is the one that runs now; any other is a stale fence.
local function runs(id, attempt)
  local state, current = unpack(redis.call('HMGET', JOB .. id, 'state', 'attempt'))
  return state == 'running' and current == attempt
end

local function overdue(id)
  local deadline = redis.call('HGET', JOB .. id, 'deadline')
  return deadline and tonumber(deadline) <= now()
end
"""

# id, owner, request, inputs, result_ttl, backend, deadline or ''
#   ->  1, or 0 when the job exists (a repeat after a lost reply)
ENQUEUE = (
    _PRELUDE
    + f"""
local id, owner, request, inputs, result_ttl, backend, deadline = unpack(ARGV)
if redis.call('EXISTS', JOB .. id) == 1 then return 0 end
redis.call('HSET', JOB .. id, 'state', 'queued', 'attempt', 0, 'submitted_at', seconds(now()), 'owner', owner,
  'request', request, 'inputs', inputs, 'result_ttl', result_ttl, 'backend', backend)
if deadline ~= '' then redis.call('HSET', JOB .. id, 'deadline', deadline) end
local mine = '{owner_key("")}' .. owner
redis.call('ZADD', mine, 0, id)
for _, oldest in ipairs(redis.call('ZRANGE', mine, 0, 1)) do  -- forget the ids of records whose time is over
  if redis.call('EXISTS', JOB .. oldest) == 0 then redis.call('ZREM', mine, oldest) end
end
for _, array in ipairs(cjson.decode(inputs)) do
  redis.call('SADD', USES .. owner .. ':' .. array, id)
end
return 1
"""
)

# id  ->  nothing; a queued job whose deadline has passed becomes expired
EXPIRE_IF_OVERDUE = (
    _PRELUDE
    + """
local id = ARGV[1]
if redis.call('HGET', JOB .. id, 'state') == 'queued' and overdue(id) then
  redis.call('LREM', RQ_QUEUE, 0, id)
  settle(id, 'expired')
end
"""
)

# id, worker, process, execution, lease seconds, '1' to leave gpu jobs to others, now as RQ writes it
#   ->  {request, attempt}, or nil
START = (
    _PRELUDE
    + f"""
local id, worker, process, execution, lease, no_gpu, rq_now = unpack(ARGV)
local key = JOB .. id
local state, current = unpack(redis.call('HMGET', key, 'state', 'execution'))
if state == 'running' and current == execution then  -- the same start again, after a lost reply
  return redis.call('HMGET', key, 'request', 'attempt')
end
if state ~= 'queued' then
  redis.call('LREM', RQ_POPPED, 1, id)
  if state ~= 'running' then forget_in_rq(id) end
  return nil
end
if overdue(id) then
  settle(id, 'expired')
  return nil
end
if no_gpu == '1' and redis.call('HGET', key, 'backend') == 'gpu' then
  redis.call('LREM', RQ_POPPED, 0, id)
  redis.call('RPUSH', RQ_QUEUE, id)
  return nil
end
local at = now()
local attempt = redis.call('HINCRBY', key, 'attempt', 1)
redis.call('HSET', key, 'state', 'running', 'started_at', seconds(at), 'worker', worker, 'process', process,
  'execution', execution)
redis.call('ZADD', LEASES, at + tonumber(lease), id)
redis.call('LREM', RQ_POPPED, 0, id)

-- What RQ's prepare_execution and prepare_job_execution write. The execution's score is so far off that RQ's own
-- clean-up, which any `rq info` triggers, never takes the job for abandoned: that is for our leases to say.
local kept = {_RQ_EXECUTION_SECONDS}
local rq_execution = RQ_EXECUTION .. id .. ':' .. execution
redis.call('HSET', rq_execution, 'id', execution, 'created_at', seconds(at), 'last_heartbeat', seconds(at),
  'worker_name', worker)
redis.call('EXPIRE', rq_execution, kept)
redis.call('ZADD', RQ_EXECUTIONS .. id, seconds(at + kept), execution)
redis.call('EXPIRE', RQ_EXECUTIONS .. id, kept)
redis.call('ZADD', RQ_STARTED, seconds(at + kept), id .. ':' .. execution)
redis.call('HSET', RQ_JOB .. id, 'status', 'started', 'started_at', rq_now, 'last_heartbeat', rq_now,
  'worker_name', worker)
if redis.call('EXISTS', RQ_WORKER .. worker) == 1 then
  redis.call('HSET', RQ_WORKER .. worker, 'state', 'busy', 'current_job', id, 'current_job_working_time', 0)
end
return {{redis.call('HGET', key, 'request'), attempt}}
"""
)

# id, attempt, lease seconds  ->  1 while the attempt is the one that runs, else 0
RENEW = (
    _PRELUDE
    + """
local id, attempt, lease = unpack(ARGV)
if not runs(id, attempt) then return 0 end
redis.call('ZADD', LEASES, 'XX', now() + tonumber(lease), id)
return 1
"""
)

# id, attempt, state, field ('result' or 'error'), its value, provenance or ''  ->  1, or 0 for a stale attempt
FINISH = (
    _PRELUDE
    + """
local id, attempt, state, field, value, provenance = unpack(ARGV)
local key = JOB .. id
if not runs(id, attempt) then
  local before = redis.call('HMGET', key, 'state', 'attempt', field)
  -- The same finish again, after a lost reply, is the same commit.
  if before[1] == state and before[2] == attempt and before[3] == value then return 1 end
  return 0
end
redis.call('HSET', key, field, value)
if provenance ~= '' then redis.call('HSET', key, 'provenance', provenance) end
if state == 'succeeded' then
  redis.call('HSET', key, 'progress', 1, 'result_expires_at',
    seconds(now() + tonumber(redis.call('HGET', key, 'result_ttl'))))
end
local worker = RQ_WORKER .. redis.call('HGET', key, 'worker')
if redis.call('EXISTS', worker) == 1 then
  local took = now() - tonumber(redis.call('HGET', key, 'started_at'))
  redis.call('HINCRBY', worker, state == 'succeeded' and 'successful_job_count' or 'failed_job_count', 1)
  redis.call('HINCRBYFLOAT', worker, 'total_working_time', seconds(took))
end
settle(id, state)
return 1
"""
)

# id, attempt  ->  1, or 0 for a stale attempt; a running job's deadline has passed
EXPIRE = (
    _PRELUDE
    + """
local id, attempt = unpack(ARGV)
if not runs(id, attempt) then return 0 end
settle(id, 'expired')
return 1
"""
)

# id, attempt, strike (1 when the worker died of it, 0 when it was asked to stop), allowed attempts  ->  1 or 0
RETRY = (
    _PRELUDE
    + f"""
local id, attempt, strike, allowed = unpack(ARGV)
local key = JOB .. id
if not runs(id, attempt) then return 0 end
local strikes = tonumber(redis.call('HGET', key, 'strikes') or 0) + tonumber(strike)
if strikes >= tonumber(allowed) then return 0 end
leave(id)
redis.call('HDEL', key, 'started_at', 'worker', 'process')
redis.call('HSET', key, 'state', 'queued', 'strikes', strikes)
redis.call('HSET', RQ_JOB .. id, 'status', 'queued', 'started_at', '', 'worker_name', '')
redis.call('SADD', '{Queue.redis_queues_keys}', RQ_QUEUE)
redis.call('LPUSH', RQ_QUEUE, id)
return 1
"""
)

# id  ->  the state after, or nil for an unknown job
CANCEL = (
    _PRELUDE
    + f"""
local id = ARGV[1]
local key = JOB .. id
local state, worker = unpack(redis.call('HMGET', key, 'state', 'worker'))
if state == 'queued' then
  redis.call('LREM', RQ_QUEUE, 0, id)
  if overdue(id) then state = 'expired' else state = 'canceled' end
  settle(id, state)
elseif state == 'running' then
  state = 'canceled'
  settle(id, state)
  -- RQ's own stop-job command, as rq.command.send_stop_job_command sends it.
  redis.call('PUBLISH', string.format('{PUBSUB_CHANNEL_TEMPLATE}', worker),
    cjson.encode({{command = 'stop-job', job_id = id}}))
end
return state
"""
)

# id, the request without parameters and inputs  ->  {result or '', array ids no live job of the owner reads}
ERASE = (
    _PRELUDE
    + """
local id, stripped = unpack(ARGV)
local key = JOB .. id
local owner, inputs, result = unpack(redis.call('HMGET', key, 'owner', 'inputs', 'result'))
if not owner then return {''} end
local answer = {result or ''}
for _, array in ipairs(cjson.decode(inputs)) do
  if redis.call('SCARD', USES .. owner .. ':' .. array) == 0 then table.insert(answer, array) end
end
redis.call('HDEL', key, 'result', 'result_expires_at', 'error', 'provenance', 'progress')  -- an error may quote data
redis.call('HSET', key, 'request', stripped, 'inputs', '[]', 'erased', 1)
return answer
"""
)

# id  ->  1 when an id that was popped and never started went back to the front of the queue
RESTORE = (
    _PRELUDE
    + """
local id = ARGV[1]
if redis.call('LREM', RQ_POPPED, 0, id) == 0 then return 0 end
if redis.call('HGET', JOB .. id, 'state') ~= 'queued' then return 0 end
redis.call('LREM', RQ_QUEUE, 0, id)
redis.call('LPUSH', RQ_QUEUE, id)
return 1
"""
)
