-- The number of waiting jobs of each owner.
-- Argument: kinds of work.
-- Answer: {priority, owner, ids that wait} of each that has any.
--@include kinds

local answer = {}
for _, priority in ipairs(const.PRIORITIES) do
  local counts = {}
  for kind in string.gmatch(ARGV[1], '%S+') do
    local lane = lane_of(priority, kind)
    for _, owner in ipairs(redis.call('ZRANGE', const.RING .. lane, 0, -1)) do
      counts[owner] = (counts[owner] or 0) + redis.call('LLEN', const.RQ_QUEUE .. lane .. '-' .. owner)
    end
  end
  for owner, count in pairs(counts) do table.insert(answer, {priority, owner, count}) end
end
return answer
