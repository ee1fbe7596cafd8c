-- The launches of one Unix hour.
-- Argument: the hour.
-- Answer: of each kind of launch: device, "operation|backend|size class", seconds, launches; device '' for all devices.

local fields, answer = redis.call('HGETALL', const.COUNTS_OF_HOUR .. ARGV[1]), {}
local seconds, launches = {}, {}
for at = 1, #fields, 2 do
  if string.sub(fields[at], 1, 24) == 'kernel_duration_seconds|' then
    -- Hours of the release before this one name no device.
    local name, own = string.match(fields[at], '^([^' .. const.DEVICE .. ']+)' .. const.DEVICE .. '?(.*)$')
    local kind, bucket = string.match(name, '^[^|]+|(.+)|([^|]+)$')
    for _, device in ipairs(own ~= '' and {'', own} or {''}) do
      local sums = bucket == 'sum' and seconds or launches
      sums[device] = sums[device] or {}
      sums[device][kind] = (sums[device][kind] or 0) + fields[at + 1]
    end
  end
end
for device, kinds in pairs(launches) do
  for kind, count in pairs(kinds) do
    table.insert(answer, device)
    table.insert(answer, kind)
    table.insert(answer, string.format('%.17g', (seconds[device] or {})[kind] or 0))
    table.insert(answer, count)
  end
end
return answer
