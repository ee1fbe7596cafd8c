-- Renew the leases of a worker's attempts.
-- Arguments: lease seconds, seconds after which a lease is renewed, then of each: id, attempt, digest of its claim's
--   token.
-- Answer: of each 1 while the attempt is the one that runs, 2 if its owner pauses the job, else 0.
--@include attempts
--@include records
--@include clock

local lease, after, answer = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for at = 3, #ARGV, 3 do
  local id, held = ARGV[at], runs(unpack(ARGV, at, at + 2))
  local pausing, age = get(id, 'pausing', 'age')
  -- Of a shard: its seconds, by a clock that does not jump. A Redis that is full may refuse it.
  if held and age then redis.pcall('HINCRBY', const.JOB .. id, 'age', 1) end
  if held and tonumber(redis.call('ZSCORE', const.LEASES, id) or 0) < now() + lease - after then
    redis.call('ZADD', const.LEASES, 'XX', now() + lease, id)
  end
  table.insert(answer, held and (pausing and 2 or 1) or 0)
end
return answer
