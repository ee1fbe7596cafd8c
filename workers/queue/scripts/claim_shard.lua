-- Claim a shard of a job for the worker that has the job, which is cut into shards the first time.
-- Arguments: worker, process, digest of this claim's token, lease seconds, then of the job: id, attempt, digest of its
--   claim's token, number of shards, the number of one whose arrays cannot be merged or '', the most seconds for which
--   another worker may compute a shard alone, then of the shard that it has computed, if any: id, attempt, digest,
--   provenance.
-- Answer: 'shard', then as CLAIM; or 'wait', while others compute all that are left; or 'done', then the provenance of
--   each; or 'lost' if the job's attempt is not the one that runs.
--@include claiming

local worker, process, token, lease, job, attempt, digest, number_of, again, patience = unpack(ARGV)
if not runs(job, attempt, digest) then return {'lost'} end
redis.call('ZREM', const.IDLE, worker)  -- first of all: a Redis that is full lets a script go on then
if ARGV[11] then finish_shard(ARGV[11], ARGV[12], ARGV[13], const.SUCCEEDED, ARGV[14]) end
local before = remembered(worker, token)
if before and #before > 2 then return {'shard', unpack(before)} end  -- the same again, after a lost reply
if get(job, 'shards') ~= number_of then cut(job, tonumber(number_of)) end
if again ~= '' then compute_again(job .. ':' .. again) end
offer(job)
local wish = {worker = worker, process = process, token = token, lease = lease}
local open = redis.call('ZRANGE', open_key(job), 0, 0)
if #open > 0 then return {'shard', unpack(claim_shard(wish, job, open[1]))} end
local done = {}
for number = 0, number_of - 1 do
  local id = job .. ':' .. number
  local state, by, since, provenance = get(id, 'state', 'worker', 'started_at', 'provenance')
  if state == const.SUCCEEDED then
    table.insert(done, provenance)
  elseif not since or by == worker or math.abs(now() - tonumber(since)) > tonumber(patience) then
    reopen(id)
    return {'shard', unpack(claim_shard(wish, job, string.format('%04d', number)))}
  end
end
if #done == tonumber(number_of) then return {'done', unpack(done)} end
return {'wait'}
