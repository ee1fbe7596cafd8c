-- The tasks that wait for a worker, without those in a backoff.
-- Arguments: kinds of work, the most ids to look at.
-- Answer: their names, each once.
--@include records
--@include kinds

local answer, found, left = {}, {}, tonumber(ARGV[2])
for _, priority in ipairs(const.PRIORITIES) do
  for kind in string.gmatch(ARGV[1], '%S+') do
    local lane = lane_of(priority, kind)
    for _, owner in ipairs(redis.call('ZRANGE', const.RING .. lane, 0, -1)) do
      if left > 0 then
        local ids = redis.call('LRANGE', const.RQ_QUEUE .. lane .. '-' .. owner, 0, left - 1)
        left = left - #ids
        for _, id in ipairs(ids) do
          local name = operation_of(id)
          if not found[name] then table.insert(answer, name) end
          found[name] = true
        end
      end
    end
  end
end
return answer
