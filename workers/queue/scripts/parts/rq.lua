-- RQ's own records, which mirror ours: `rq info` and exporters read the service in them.
--@include clock

-- RQ lists a queue while something waits or runs in it.
local function mirror_queue(lane, owner)
  local name = lane .. '-' .. owner
  if redis.call('EXISTS', const.RQ_QUEUE .. name, const.RQ_STARTED .. name) > 0 then
    redis.call('SADD', const.RQ_QUEUES, const.RQ_QUEUE .. name)
  else
    redis.call('SREM', const.RQ_QUEUES, const.RQ_QUEUE .. name)
  end
end

-- What RQ's prepare_job_execution writes. RQ sees one execution of a job at a time.
local function mirror_started(id, lane, owner, worker, time, rq_now)
  redis.call('ZADD', const.RQ_STARTED .. lane .. '-' .. owner, seconds(time + const.RQ_EXECUTION_SECONDS), id .. ':1')
  redis.call('HSET', const.RQ_JOB .. id, 'status', 'started', 'started_at', rq_now, 'last_heartbeat', rq_now,
    'worker_name', worker)
end

local function mirror_ended(id, lane, owner)
  redis.call('ZREM', const.RQ_STARTED .. lane .. '-' .. owner, id .. ':1')
  mirror_queue(lane, owner)
end

local function mirror_queued_again(id)
  redis.call('HSET', const.RQ_JOB .. id, 'status', 'queued', 'started_at', '', 'worker_name', '')
end

local function mirror_settled(id)
  redis.call('DEL', const.RQ_JOB .. id, const.RQ_JOB .. id .. ':dependents')
end

local function mirror_busy(worker, id)
  redis.call('HSET', const.RQ_WORKER .. worker, 'state', 'busy', 'current_job', id, 'current_job_working_time', 0)
end

local function mirror_idle(worker)
  redis.call('HSET', const.RQ_WORKER .. worker, 'state', 'idle', 'current_job_working_time', 0)
  redis.call('HDEL', const.RQ_WORKER .. worker, 'current_job')
end
