-- Note what a running task reports of a step, or that it kept a checkpoint after it.
-- Arguments: id, attempt, digest of its claim's token, step, the share that is done or '', the values that it reports as
--   a JSON object or '', the checkpoint's name or '', why the task began again or ''.
-- Answer: 1, or 0 where the attempt is not the one that runs.
--@include attempts
--@include events

local id, attempt, digest, step, done, values, checkpoint, again = unpack(ARGV)
local key, progress = const.JOB .. id, const.PROGRESS_OF .. id
if not runs(id, attempt, digest) then return 0 end
if again ~= '' then
  redis.call('HDEL', key, 'step', 'checkpoint', 'progress')
  redis.call('DEL', progress)
  add_event(id, 'progress', 'reason', again)
end
if checkpoint ~= '' then
  local before = tonumber(redis.call('HGET', key, 'step') or 0)
  if tonumber(step) > before then
    -- Who gets on is no poison: claims, strikes and tries are counted from here. First of all: a Redis that is full lets
    -- a script go on once it has deleted something.
    redis.call('HDEL', key, 'strikes', 'retries')
    redis.call('HSET', key, 'step', step, 'advanced', attempt)
  end
  redis.call('HSET', key, 'checkpoint', checkpoint)
end
if done ~= '' then redis.call('HSET', key, 'progress', done) end
if values ~= '' then
  -- A step that is repeated after a death has been reported before.
  local last = redis.call('XREVRANGE', progress, '+', '-', 'COUNT', 1)[1]
  if not last or tonumber(string.match(last[1], '^%d+')) < tonumber(step) then
    redis.call('XADD', progress, 'MAXLEN', '~', const.REPORTED_STEPS, step .. '-0', 'at', seconds(now()), 'values',
      values)
  end
  local more = '"step":' .. step .. ',"values":' .. values
  if done ~= '' then more = more .. ',"progress":' .. done end
  add_event(id, 'progress', nil, nil, more)
end
return 1
