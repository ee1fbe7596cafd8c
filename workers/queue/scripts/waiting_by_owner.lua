-- The number of waiting jobs of each owner.
-- Answer: {priority, owner, ids that wait} of each that has any.

local answer = {}
for _, priority in ipairs(const.PRIORITIES) do
  local counts = {}
  for _, lane in ipairs({priority, priority .. '-gpu'}) do
    for _, owner in ipairs(redis.call('ZRANGE', const.RING .. lane, 0, -1)) do
      counts[owner] = (counts[owner] or 0) + redis.call('LLEN', const.RQ_QUEUE .. lane .. '-' .. owner)
    end
  end
  for owner, count in pairs(counts) do table.insert(answer, {priority, owner, count}) end
end
return answer
