-- Enqueue a job, or find the one that its idempotency key had before.
-- Arguments: id, owner, operation, request, its MAC or '', inputs, result_ttl, deadline or '', lane, key or '', items,
--   bytes, size, private, idempotency key or '', fingerprint, same or '', most waiting or '', most of the owner or '',
--   1 where the queue is shared, the time as RQ writes it, attached inputs or '', the most live tasks of the owner
--   where it is one or '', seconds that it is predicted to take a worker with a GPU or '', one without or '', then
--   field and value of RQ's record.
-- Answer: 'ok' | 'replayed' | 'reused' | 'full' | 'quota' | 'gone', then the job's id, or numbers, or the arrays.
--@include claiming

local id, owner, operation, request, mac, inputs, result_ttl, deadline, lane, key, items, bytes, size, private,
  idempotency, fingerprint, same, most, most_of_owner, shared, rq_now, attached, most_tasks, on_gpu,
  on_cpu = unpack(ARGV, 1, 25)
if redis.call('EXISTS', const.JOB .. id) == 1 then return {'ok', id} end  -- the same again, after a lost reply
new_job = id
local replayed = const.IDEMPOTENCY .. owner .. ':' .. idempotency
if idempotency ~= '' then
  local before = redis.call('GET', replayed)
  if before then
    local earlier, job = string.match(before, '^(%S+) (%S+)$')
    return {earlier == fingerprint and 'replayed' or 'reused', job}
  end
end
local arrays, gone = cjson.decode(inputs), {}
for _, array in ipairs(arrays) do
  if redis.call('EXISTS', const.FORBIDDEN .. owner .. ':' .. array) == 1 then table.insert(gone, array) end
end
if #gone > 0 then return {'gone', unpack(gone)} end
local waiting, live = redis.call('ZCARD', const.WAITING), redis.call('SCARD', const.LIVE .. owner)
local tasks = most_tasks ~= '' and redis.call('SCARD', const.TASKS_OF .. owner)
if tasks and tasks >= tonumber(most_tasks) then
  for _, task in ipairs(redis.call('SMEMBERS', const.TASKS_OF .. owner)) do  -- the release before ends tasks in part
    if redis.call('SISMEMBER', const.LIVE .. owner, task) == 0 then redis.call('SREM', const.TASKS_OF .. owner, task) end
  end
  tasks = redis.call('SCARD', const.TASKS_OF .. owner)
  if tasks >= tonumber(most_tasks) then return {'tasks', tasks} end
end
if most ~= '' and waiting >= tonumber(most) then return {'full', waiting} end
if most_of_owner ~= '' and live >= tonumber(most_of_owner) then return {'quota', live} end
local free = shared == '1' and tonumber(most) - waiting
local kept = free and live > 0 and free <= tonumber(most) / const.KEPT_FOR_NEWCOMERS
if free and (live >= free or kept) then return {'quota', live, free} end

redis.call('HSET', const.JOB .. id, 'attempt', 0, 'submitted_at', seconds(now()), 'owner', owner, 'request', request,
  'mac', mac, 'inputs', inputs, 'result_ttl', result_ttl, 'lane', lane, 'key', key, 'items', items, 'bytes', bytes,
  'size', size, 'private', private, 'operation', operation)
if on_gpu ~= '' then redis.call('HSET', const.JOB .. id, 'on_gpu', on_gpu) end
if on_cpu ~= '' then redis.call('HSET', const.JOB .. id, 'on_cpu', on_cpu) end
count_enqueued(lane, operation)
if deadline ~= '' then redis.call('HSET', const.JOB .. id, 'deadline', deadline) end
if idempotency ~= '' then redis.call('SET', replayed, fingerprint .. ' ' .. id, 'EX', const.IDEMPOTENCY_SECONDS) end
redis.call('SADD', const.LIVE .. owner, id)
if is_task(lane) then redis.call('SADD', const.TASKS_OF .. owner, id) end
local mine = const.JOBS_OF .. owner
redis.call('ZADD', mine, 0, id)
for _, oldest in ipairs(redis.call('ZRANGE', mine, 0, 1)) do  -- forget the ids of records whose time is over
  if redis.call('EXISTS', const.JOB .. oldest) == 0 then redis.call('ZREM', mine, oldest) end
end
for _, array in ipairs(arrays) do
  redis.call('SADD', const.USES .. owner .. ':' .. array, id)
end
redis.call('HSET', const.RQ_JOB .. id, unpack(ARGV, 26))

-- Its inputs, if they came with it. One that another computes for takes over the other's, if it has to run after all.
local function keep_attached()
  if attached ~= '' then redis.call('HSET', const.JOB .. id, 'attached', attached) end
end

if same ~= '' then
  redis.call('HSET', const.JOB .. id, 'same', same)
  local leader = redis.call('GET', const.SAME .. owner .. ':' .. same)
  if leader and redis.call('SCARD', const.FOLLOWERS .. leader) < const.FOLLOWERS_OF_ONE then
    redis.call('HSET', const.JOB .. id, 'state', const.QUEUED, 'leader', leader)
    if not redis.call('HGET', const.JOB .. leader, 'attached') then keep_attached() end
    redis.call('SADD', const.FOLLOWERS .. leader, id)
    if deadline ~= '' then redis.call('ZADD', const.DEADLINES, deadline, id) end
    add_event(id, const.QUEUED, 'reason', 'an identical job of the same key computes for it')
    pcall(keep_counts)
    return {'ok', id}
  end
  redis.call('SET', const.SAME .. owner .. ':' .. same, id)
end
keep_attached()
enter_queue(id, false, 0)

-- To the worker that waits longest, if one does: it need not be rung for and ask. What it is handed is its claim.
local function hand_over()
  if redis.call('EXISTS', const.RQ_SUSPENDED) == 1 then return end
  local earliest, latest, left = seconds(now() - const.HOLDS_SECONDS), seconds(now()), false
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', const.IDLE, earliest, latest)) do
    local wish, hand = cjson.decode(redis.call('HGET', const.WISHES, worker)), const.HANDED .. worker
    local spares, chooses = (wish.gpus or '') ~= '', (wish.tasks or '') ~= ''
    if is_of(wish.kinds, lane) and not (spares and left) then
      wish.lease, wish.no_shards = const.HANDED_LEASE_SECONDS, true
      redis.call('DEL', hand)
      local answer = claim(wish, rq_now)
      if #answer > 0 then
        redis.call('ZREM', const.IDLE, worker)
        redis.call('RPUSH', hand, cjson.encode({token = wish.token, batch = answer}))
        redis.call('EXPIRE', hand, const.HANDED_SECONDS)
      end
      if #answer > 0 or not (spares or chooses) then return end
      left = left or spares  -- as another worker without a GPU would leave it
    end
  end
end
-- The job is queued, whatever comes of this: nothing that a script has done is taken back where it fails.
pcall(hand_over)
pcall(keep_counts)
return {'ok', id}
