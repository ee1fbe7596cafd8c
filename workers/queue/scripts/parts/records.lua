-- Job records.

local function get(id, ...)
  return unpack(redis.call('HMGET', const.JOB .. id, ...))
end

-- Jobs that the release before this one queued have no operation in their record.
local function operation_of(id)
  return redis.call('HGET', const.JOB .. id, 'operation') or 'other'
end

local function release_inputs(id)
  local owner, inputs = get(id, 'owner', 'inputs')
  for _, array in ipairs(cjson.decode(inputs)) do
    redis.call('SREM', const.USES .. owner .. ':' .. array, id)
  end
end

local function keep_for(id, time)
  redis.call('EXPIRE', const.JOB .. id, time)
  redis.call('EXPIRE', const.EVENTS_OF .. id, time)
  redis.call('EXPIRE', const.PROGRESS_OF .. id, time)
end
