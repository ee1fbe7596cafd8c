-- Cancellation.
--@include records
--@include settling

-- Cancel what is live. The state after, or nil for an unknown job.
local function stop(id)
  local state, worker = get(id, 'state', 'worker')
  if state == const.QUEUED or state == const.PAUSED then
    state = overdue(id) and const.EXPIRED or const.CANCELED
    settle(id, state)
  elseif state == const.RUNNING then
    state = const.CANCELED
    settle(id, state)
    -- RQ's own stop-job command, as rq.command.send_stop_job_command sends it.
    redis.call('PUBLISH', string.format(const.RQ_COMMANDS, worker),
      cjson.encode({command = 'stop-job', job_id = id}))
  end
  return state
end

-- What the API ended stays ended for its workers' routes: a worker's account may write the record, and not this. It is
-- noted before anything that an odd record could make fail.
local function close(id)
  redis.call('SET', const.CLOSED .. id, 1, 'EX', const.CLOSED_SECONDS)
end
