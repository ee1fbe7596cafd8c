-- Enqueue jobs of one owner, all or none, or find those that their idempotency key had before.
-- Arguments: number of jobs, owner, idempotency key or '', fingerprint, most waiting or '', most of the owner or '',
--   1 where the queue is shared, the most live tasks of the owner where one of them is a task or '', the time as RQ
--   writes it. Then of each job: the number of its arguments, id, operation, request, its MAC or '', inputs, result_ttl,
--   deadline or '', lane, key or '', items, bytes, size, private, same or '', attached inputs or '', seconds that it is
--   predicted to take a worker with a GPU or '', one without or '', then field and value of RQ's record.
-- Answer: 'ok' | 'replayed' | 'reused' | 'full' | 'quota' | 'tasks' | 'gone', then the first job's id, or numbers, or the
--   arrays.
--@include claiming

local number_of, owner, idempotency, fingerprint, most, most_of_owner, shared, most_tasks, rq_now = unpack(ARGV, 1, 9)
local first = ARGV[11]
if redis.call('EXISTS', const.JOB .. first) == 1 then return {'ok', first} end  -- the same again, after a lost reply
local replayed = const.IDEMPOTENCY .. owner .. ':' .. idempotency
if idempotency ~= '' then
  local before = redis.call('GET', replayed)
  if before then
    local earlier, job = string.match(before, '^(%S+) (%S+)$')
    return {earlier == fingerprint and 'replayed' or 'reused', job}
  end
end

-- Jobs with their arguments by name, their ids, and those that read an array, of each array.
local jobs, ids, arrays, readers, tasks_more, at = {}, {}, {}, {}, -1, 10
for place = 1, tonumber(number_of) do
  local last, job = at + tonumber(ARGV[at]), {}
  job.id, job.operation, job.request, job.mac, job.inputs, job.result_ttl, job.deadline, job.lane, job.key, job.items,
    job.bytes, job.size, job.private, job.same, job.attached, job.on_gpu, job.on_cpu = unpack(ARGV, at + 1, at + 17)
  job.rq = {unpack(ARGV, at + 18, last)}
  for _, array in ipairs(cjson.decode(job.inputs)) do
    if not readers[array] then
      readers[array] = {}
      table.insert(arrays, array)
    end
    table.insert(readers[array], job.id)
  end
  if is_task(job.lane) then tasks_more = tasks_more + 1 end
  jobs[place], ids[place], at = job, job.id, last + 1
end
local gone = {}
for _, array in ipairs(arrays) do
  if redis.call('EXISTS', const.FORBIDDEN .. owner .. ':' .. array) == 1 then table.insert(gone, array) end
end
if #gone > 0 then return {'gone', unpack(gone)} end

-- All are refused where the last one would be, after the others.
local more = #jobs - 1
local waiting, live = redis.call('ZCARD', const.WAITING), redis.call('SCARD', const.LIVE .. owner)
local tasks = most_tasks ~= '' and redis.call('SCARD', const.TASKS_OF .. owner)
if tasks and tasks + tasks_more >= tonumber(most_tasks) then
  for _, task in ipairs(redis.call('SMEMBERS', const.TASKS_OF .. owner)) do  -- the release before ends tasks in part
    if redis.call('SISMEMBER', const.LIVE .. owner, task) == 0 then redis.call('SREM', const.TASKS_OF .. owner, task) end
  end
  tasks = redis.call('SCARD', const.TASKS_OF .. owner)
  if tasks + tasks_more >= tonumber(most_tasks) then return {'tasks', tasks} end
end
if most ~= '' and waiting + more >= tonumber(most) then return {'full', waiting} end
if most_of_owner ~= '' and live + more >= tonumber(most_of_owner) then return {'quota', live} end
local free = shared == '1' and tonumber(most) - waiting
local kept = free and live + more > 0 and free - more <= tonumber(most) / const.KEPT_FOR_NEWCOMERS
if free and (live + more >= free - more or kept) then return {'quota', live, free} end

-- Ids by lane, what goes into sorted sets, and the lanes in the order of their first jobs.
local submitted_at, lanes, by_lane, waits, deadlines = seconds(now()), {}, {}, {}, {}
local of_tasks, listed = {}, {}
for _, job in ipairs(jobs) do
  local id, same, leader = job.id, const.SAME .. owner .. ':' .. job.same, nil
  if job.same ~= '' then
    leader = redis.call('GET', same)
    if leader and redis.call('SCARD', const.FOLLOWERS .. leader) >= const.FOLLOWERS_OF_ONE then leader = nil end
  end
  local record = {'attempt', 0, 'submitted_at', submitted_at, 'owner', owner, 'request', job.request, 'mac', job.mac,
    'inputs', job.inputs, 'result_ttl', job.result_ttl, 'lane', job.lane, 'key', job.key, 'items', job.items,
    'bytes', job.bytes, 'size', job.size, 'private', job.private, 'operation', job.operation, 'state', const.QUEUED,
    'events', 1}
  local function set(field, value)
    record[#record + 1], record[#record + 2] = field, value
  end
  for _, field in ipairs({'deadline', 'same', 'on_gpu', 'on_cpu'}) do
    if job[field] ~= '' then set(field, job[field]) end
  end
  if leader then set('leader', leader) end
  -- Its inputs, if they came with it. One that another computes for takes over the other's, if it has to run after all.
  if job.attached ~= '' and not (leader and redis.call('HGET', const.JOB .. leader, 'attached')) then
    set('attached', job.attached)
  end
  redis.call('HSET', const.JOB .. id, unpack(record))
  redis.call('HSET', const.RQ_JOB .. id, unpack(job.rq))
  count_enqueued(job.lane, job.operation)
  new_jobs[id] = true
  if job.deadline ~= '' then table.insert(deadlines, job.deadline) table.insert(deadlines, id) end
  table.insert(listed, 0) table.insert(listed, id)
  if is_task(job.lane) then table.insert(of_tasks, id) end
  if leader then
    redis.call('SADD', const.FOLLOWERS .. leader, id)
    add_first_event(id, owner, 'reason', 'an identical job of the same key computes for it')
  else
    if job.same ~= '' then redis.call('SET', same, id) end
    if not by_lane[job.lane] then
      by_lane[job.lane] = {}
      table.insert(lanes, job.lane)
    end
    table.insert(by_lane[job.lane], id)
    table.insert(waits, submitted_at) table.insert(waits, id)
    add_first_event(id, owner)
  end
end
if idempotency ~= '' then redis.call('SET', replayed, fingerprint .. ' ' .. first, 'EX', const.IDEMPOTENCY_SECONDS) end
redis.call('SADD', const.LIVE .. owner, unpack(ids))
if #of_tasks > 0 then redis.call('SADD', const.TASKS_OF .. owner, unpack(of_tasks)) end
for _, array in ipairs(arrays) do redis.call('SADD', const.USES .. owner .. ':' .. array, unpack(readers[array])) end
if #deadlines > 0 then redis.call('ZADD', const.DEADLINES, unpack(deadlines)) end
if #waits > 0 then redis.call('ZADD', const.WAITING, unpack(waits)) end
local mine, there = const.JOBS_OF .. owner, 0
redis.call('ZADD', mine, unpack(listed))
for _, oldest in ipairs(redis.call('ZRANGE', mine, 0, 2 * #jobs - 1)) do  -- forget the ids of records whose time is over
  if redis.call('EXISTS', const.JOB .. oldest) == 0 then
    redis.call('ZREM', mine, oldest)
  else
    there = there + 1
    if there == 2 then break end
  end
end
for _, lane in ipairs(lanes) do push(lane, owner, false, unpack(by_lane[lane])) end

-- To the worker that waits longest, if one does: it need not be rung for and ask. What it is handed is its claim. What is
-- left of several jobs is for those that hear no bell; the others are rung for.
local function hand_over(lane)
  if redis.call('EXISTS', const.RQ_SUSPENDED) == 1 then return end
  local earliest, latest, left, handed = seconds(now() - const.HOLDS_SECONDS), seconds(now()), false, false
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', const.IDLE, earliest, latest)) do
    local wish, hand = cjson.decode(redis.call('HGET', const.WISHES, worker)), const.HANDED .. worker
    local spares, chooses = (wish.gpus or '') ~= '', (wish.tasks or '') ~= ''
    if is_of(wish.kinds, lane) and not (spares and left) and not (handed and not spares) then
      wish.lease, wish.no_shards = const.HANDED_LEASE_SECONDS, true
      redis.call('DEL', hand)
      local answer = claim(wish, rq_now)
      if #answer > 0 then
        redis.call('ZREM', const.IDLE, worker)
        redis.call('RPUSH', hand, cjson.encode({token = wish.token, batch = answer}))
        redis.call('EXPIRE', hand, const.HANDED_SECONDS)
        handed = true
      end
      if (#answer > 0 and #by_lane[lane] == 1) or not (#answer > 0 or spares or chooses) then return end
      left = left or (spares and #answer == 0)  -- as another worker without a GPU would leave it
    end
  end
end
-- The jobs are queued, whatever comes of this: nothing that a script has done is taken back where it fails.
for _, lane in ipairs(lanes) do pcall(hand_over, lane) end
pcall(keep_counts)
return {'ok', first}
