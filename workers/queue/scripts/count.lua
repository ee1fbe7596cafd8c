-- Add what a process counted, and move what transitions counted to the hour's and to all counts.
-- Arguments: process, number of its addition, '1' for an answer, then of each: field and amount.
-- Answer: the counts after it.
--@include clock

local process, number, with_totals = unpack(ARGV, 1, 3)
local tally, hour = const.TALLY .. process, const.COUNTS_OF_HOUR .. math.floor(now() / 3600)
local counted, hourly, families = {}, {}, {}
for _, family in ipairs(const.HOURLY) do families[family] = true end

local function add(field, amount)
  local name = string.match(field, '^[^' .. const.DEVICE .. ']+')  -- the hours alone know the devices
  counted[name] = (counted[name] or 0) + amount
  if families[string.match(name, '^[^|]+')] then hourly[field] = (hourly[field] or 0) + amount end
end

local function keep(key, amounts)
  local names = {}
  for name in pairs(amounts) do names[#names + 1] = name end
  for first = 1, #names, 1000 do  -- more than that Lua's stack may not take
    local some = {unpack(names, first, math.min(first + 999, #names))}
    local before, after = redis.call('HMGET', key, unpack(some)), {}
    for place, name in ipairs(some) do
      after[2 * place - 1] = name
      after[2 * place] = string.format('%.17g', (tonumber(before[place] or 0) or 0) + amounts[name])
    end
    redis.call('HSET', key, unpack(after))
  end
end

local fresh = redis.call('HGETALL', const.COUNTS_FRESH)
for at = 1, #fresh, 2 do add(fresh[at], tonumber(fresh[at + 1])) end
local news = #ARGV > 3 and tonumber(redis.call('GET', tally) or 0) < tonumber(number)
if news then
  for at = 4, #ARGV, 2 do add(ARGV[at], tonumber(ARGV[at + 1])) end
end
-- First what must not happen twice: should the rest fail, as by a right that is missing, what it was about to add is
-- lost, and nothing is counted again by whoever is next. And Redis lets a script go on once it has deleted something,
-- even if it is full.
if next(counted) then redis.call('DEL', const.COUNTS_FRESH) end
if news then redis.call('SET', tally, number, 'EX', const.COUNTS_SECONDS) end
if next(counted) then
  keep(const.COUNTS, counted)
  redis.call('HSETNX', const.COUNTS, 'since', math.floor(now()))
end
if next(hourly) then
  keep(hour, hourly)
  redis.call('EXPIRE', hour, const.COUNTS_SECONDS)
end
return with_totals == '1' and redis.call('HGETALL', const.COUNTS) or {}
