-- The position of a queued job.
-- Argument: id.
-- Answer: how many jobs of its owner will be claimed before it, as things are; nil when it is not queued.
--@include records
--@include kinds

local id = ARGV[1]
local state, lane, owner, leader = get(id, 'state', 'lane', 'owner', 'leader')
if state ~= const.QUEUED then return nil end
if leader then
  id = leader
  if redis.call('HGET', const.JOB .. id, 'state') ~= const.QUEUED then return 0 end
end
local kinds, ahead = {kind_of(lane), beside[kind_of(lane)]}, 0
for _, priority in ipairs(const.PRIORITIES) do
  local reached = nil
  for _, kind in ipairs(kinds) do
    local list = const.RQ_QUEUE .. lane_of(priority, kind) .. '-' .. owner
    if lane_of(priority, kind) == lane then
      reached = redis.call('LPOS', list, id) or 0
    else
      ahead = ahead + redis.call('LLEN', list)
    end
  end
  if reached then return ahead + reached end
end
