-- Lanes by their names: a priority, and a kind of work after it unless that is 'any'.

local function kind_of(lane)
  return string.match(lane, '^%a+%-(.+)$') or 'any'
end

local function lane_of(priority, kind)
  return kind == 'any' and priority or priority .. '-' .. kind
end

-- Whether a lane is of one of these kinds.
local function is_of(kinds, lane)
  return string.find(' ' .. kinds .. ' ', ' ' .. kind_of(lane) .. ' ', 1, true)
end

local function is_task(lane)
  return string.match(kind_of(lane), '^task') ~= nil
end

-- The kind whose lanes go in turns with those of another one of the same priority.
local beside = {any = 'attached', attached = 'any', gpu = 'attached-gpu', ['attached-gpu'] = 'gpu'}
