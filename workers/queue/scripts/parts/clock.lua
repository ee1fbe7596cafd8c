-- The clock: one time by Redis for all that a script does, and how times are written.

local clock = nil
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = tonumber(time[1]) + tonumber(time[2]) / 1e6
  end
  return clock
end

local function seconds(time)
  return string.format('%.6f', time)
end
