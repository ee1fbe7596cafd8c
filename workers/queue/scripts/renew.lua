-- Renew the leases of a worker's attempts.
-- Arguments: lease seconds, seconds after which a lease is renewed, then of each: id, attempt, digest of its claim's
--   token.
-- Answer: of each 1 while the attempt is the one that runs, 2 if its owner pauses the job, else 0.
--@include attempts
--@include records
--@include clock

local lease, after = tonumber(ARGV[1]), tonumber(ARGV[2])
local answer = {}
for at = 3, #ARGV, 3 do
  local id, attempt, digest = unpack(ARGV, at, at + 2)
  local held = runs(id, attempt, digest)
  if held and tonumber(redis.call('ZSCORE', const.LEASES, id) or 0) < now() + lease - after then
    redis.call('ZADD', const.LEASES, 'XX', seconds(now() + lease), id)
  end
  table.insert(answer, held and (get(id, 'pausing') and 2 or 1) or 0)
end
return answer
