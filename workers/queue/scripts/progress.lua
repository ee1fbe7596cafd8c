-- Note how far a running job is.
-- Arguments: id, attempt, the share that is done.
--@include events

local id, attempt, done = unpack(ARGV)
local state, current, private = get(id, 'state', 'attempt', 'private')
if state ~= const.RUNNING or current ~= attempt or private == '1' then return end
redis.call('HSET', const.JOB .. id, 'progress', done)
add_event(id, 'progress', 'progress', tonumber(done))
for _, follower in ipairs(redis.call('SMEMBERS', const.FOLLOWERS .. id)) do
  redis.call('HSET', const.JOB .. follower, 'progress', done)
  add_event(follower, 'progress', 'progress', tonumber(done))
end
