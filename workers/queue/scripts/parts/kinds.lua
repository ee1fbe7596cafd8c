-- Lanes by their names: a priority, and a kind of work after it unless that is 'any'.

local function kind_of(lane)
  return string.match(lane, '^%a+%-(.+)$') or 'any'
end

local function lane_of(priority, kind)
  return kind == 'any' and priority or priority .. '-' .. kind
end
