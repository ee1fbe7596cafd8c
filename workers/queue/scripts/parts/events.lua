-- Events of a job.
--@include clock
--@include records

-- Jobs that are being enqueued. Their ids are not public yet, so nobody waits for their events: they are not published,
-- unless all of the owner's are followed.
local new_jobs = {}

-- Append an event to those of a job, and to those of its owner where these are followed. Answers its text, and whether
-- they are. `more` is JSON of further fields: their numbers keep all their digits.
local function append_event(id, owner, number, attempt, name, field, value, more)
  local event = {job = id, number = number, event = name, at = now(), attempt = attempt}
  if field then event[field] = value end
  local followed = redis.call('EXISTS', const.FOLLOWED .. owner) == 1
  if followed then event.owner = owner end
  local text = cjson.encode(event)
  if more then text = string.sub(text, 1, -2) .. ',' .. more .. '}' end
  redis.call('XADD', const.EVENTS_OF .. id, 'MAXLEN', '~', 200, number .. '-0', 'event', text)
  if followed then
    local place = redis.call('HINCRBY', const.FOLLOWED .. owner, 'number', 1)
    redis.call('XADD', const.FEED .. owner, 'MAXLEN', '~', const.FEED_EVENTS, string.format('%d-0', place), 'event',
      text, 'operation', operation_of(id), 'private', get(id, 'private') or '0')
    redis.call('EXPIRE', const.FEED .. owner, const.FEED_SECONDS)
  end
  return text, followed
end

-- Append the first event of a job that is being enqueued.
local function add_first_event(id, owner, field, value)
  local text, followed = append_event(id, owner, 1, 0, const.QUEUED, field, value)
  if followed then redis.call('PUBLISH', const.EVENTS, text) end
end

-- Append an event of a job and publish it. With the last one comes the record, so that nobody has to read it.
local function add_event(id, name, field, value, more)
  local private, attempt, owner = get(id, 'private', 'attempt', 'owner')
  if private == '1' and (name == const.RUNNING or name == 'progress') then return end
  local number = redis.call('HINCRBY', const.JOB .. id, 'events', 1)
  local text, followed = append_event(id, owner, number, tonumber(attempt), name, field, value, more)
  if new_jobs[id] and not followed then return end
  if name ~= const.QUEUED and name ~= const.RUNNING and name ~= const.PAUSED and name ~= 'progress' then
    local fields, record, size = redis.call('HGETALL', const.JOB .. id), {}, 0
    for at = 1, #fields, 2 do
      record[fields[at]] = fields[at + 1]
      size = size + #fields[at + 1]
    end
    if size < const.TOLD_BYTES then text = text .. '\n' .. cjson.encode(record) end
  end
  redis.call('PUBLISH', const.EVENTS, text)
end

-- Note how much of a job is done, also of those that it computes for.
local function note_progress(id, done)
  local all = redis.call('SMEMBERS', const.FOLLOWERS .. id)
  table.insert(all, 1, id)
  for _, each in ipairs(all) do
    redis.call('HSET', const.JOB .. each, 'progress', done)
    add_event(each, 'progress', 'progress', tonumber(done))
  end
end
