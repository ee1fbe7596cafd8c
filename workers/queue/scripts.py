"""The transitions of jobs as Lua: each is one atomic step in Redis, and all times come from Redis' clock.

    enqueue ─▶ queued ──claim──▶ running ──finish──▶ succeeded | failed | expired
                 ▲                 │  ▲│
                 │                 │  └┘ renew
                 └─finish (given back), reap (its worker is gone)
    cancel: queued or running ─▶ canceled        reap: queued past its deadline ─▶ expired
    rerun: a dead letter (failed, struck or claimed too often) ─▶ queued

Two sets of keys change together: our records, which are the truth, and what RQ keeps about the same jobs, so that `rq
info` shows the service as it is. RQ's key names are taken from RQ's own classes. Scripts name keys they are not given,
so they need one primary, not a cluster. They are called by their digest; `workers.queue.lua` loads them into a Redis
that does not know them.

What is counted of the transitions is in the keys of `workers.queue.counts`. It is written at the end of each script, in
few commands however many jobs end in it, and what fails there is not counted, rather than a job's end undone.
"""

from warpdesk_server.workers.queue.counts import DEVICE, HOURLY
from warpdesk_server.workers.queue.keys import (
    BELL,
    CLAIMS,
    CLOSED,
    CLOSED_SECONDS,
    COUNTS,
    COUNTS_FRESH,
    COUNTS_SECONDS,
    DEAD,
    DEAD_SECONDS,
    DEADLINES,
    DELAYED,
    ERASED,
    ERASED_SECONDS,
    EVENTS,
    FOLLOWERS,
    FORBIDDEN,
    FORBIDDEN_SECONDS,
    HANDED,
    HANDED_SECONDS,
    IDEMPOTENCY,
    IDEMPOTENCY_SECONDS,
    IDLE,
    LEASES,
    LIVE,
    RING,
    RQ_COMMANDS,
    RQ_JOB,
    RQ_QUEUE,
    RQ_QUEUES,
    RQ_STARTED,
    RQ_SUSPENDED,
    RQ_WORKER,
    SAME,
    SERVED,
    SHARED,
    SLOT,
    TALLY,
    TOMBSTONE_SECONDS,
    WAITING,
    WISHES,
    events_key,
    job_key,
    owner_key,
    uses_key,
)
from warpdesk_server.workers.queue.protocol import MAX_ATTEMPTS, MAX_STRIKES, PRIORITIES

# RQ's own clean-up, which any `rq info` triggers, fails what is past its score in its registry: never ours, whose
# leases say who is abandoned.
_RQ_EXECUTION_SECONDS = 30 * 24 * 3600

_KEPT_FOR_NEWCOMERS = 20  # one part in so many of a shared queue is for owners that have no job live

# A lane that nobody claimed from for so long goes before lanes of higher priority, once.
AGING_SECONDS = {"realtime": 0, "batch": 5, "research": 20}
# For how long a worker that waits may be handed jobs without a word of it, which is longer than it waits at a time; and
# the lease of what it is handed, which it renews at once: one that stands still keeps a job from others no longer.
HOLDS_SECONDS = 2
_HANDED_LEASE_SECONDS = 5
# Ids looked at for one batch. Each costs a look at its record, and Redis does nothing else meanwhile.
WINDOW = 256
_PASSED = 4096  # ids whose time is over, on the way to the first that can be claimed: the next claim goes on from there
_OWNERS = 64
# A record of more is not published with the job's last event: every API process would get it.
_TOLD_BYTES = 16_384
_FOLLOWERS = 256  # jobs that one computes for: they all end in one step. The next one computes for those after it

_CLOCK = """
-- One time for all that a script does.
local clock = nil
local function now()
  if not clock then
    local time = redis.call('TIME')
    clock = tonumber(time[1]) + tonumber(time[2]) / 1e6
  end
  return clock
end
"""

_COUNTING = f"""
-- What this script counts, by field. It is kept where the next COUNT finds it: one hash costs each job half of what two
-- cost, and a small one less than a large one.
local counted = {{}}
local function count(field)
  counted[field] = (counted[field] or 0) + 1
end

local function keep_counts()
  for field, amount in pairs(counted) do redis.call('HINCRBY', '{COUNTS_FRESH}', field, amount) end
end
"""

_PRELUDE = (
    _CLOCK
    + _COUNTING
    + f"""
local JOB, EVENTS, USES, LEASES = '{job_key("")}', '{events_key("")}', '{uses_key("", "")[:-1]}', '{LEASES}'
local WAITING, DELAYED, DEADLINES, LIVE = '{WAITING}', '{DELAYED}', '{DEADLINES}', '{LIVE}'
local RING, SERVED, BELL, CLAIMS, DEAD = '{RING}', '{SERVED}', '{BELL}', '{CLAIMS}', '{DEAD}'
local IDLE, WISHES, HANDED = '{IDLE}', '{WISHES}', '{HANDED}'
local SAME, FOLLOWERS, SHARED = '{SAME}', '{FOLLOWERS}', '{SHARED}'
local RQ_QUEUES, RQ_STARTED = '{RQ_QUEUE}', '{RQ_STARTED}'
local RQ_JOB, RQ_WORKER = '{RQ_JOB}', '{RQ_WORKER}'

local function seconds(time)
  return string.format('%.6f', time)
end

local function get(id, ...)
  return unpack(redis.call('HMGET', JOB .. id, ...))
end

-- A job whose id nobody has been told yet: nobody can wait for what happens to it.
local untold = nil

-- Append to the job's events and publish. With the last comes the record, so that nobody has to ask for it.
local function tell(id, name, field, value)
  local private, attempt = get(id, 'private', 'attempt')
  if private == '1' and (name == 'running' or name == 'progress') then return end
  local number = redis.call('HINCRBY', JOB .. id, 'events', 1)
  local event = {{job = id, number = number, event = name, at = now(), attempt = tonumber(attempt)}}
  if field then event[field] = value end
  local text = cjson.encode(event)
  redis.call('XADD', EVENTS .. id, 'MAXLEN', '~', 200, number .. '-0', 'event', text)
  if id == untold then return end
  if name ~= 'queued' and name ~= 'running' and name ~= 'progress' then
    local fields, record, size = redis.call('HGETALL', JOB .. id), {{}}, 0
    for at = 1, #fields, 2 do
      record[fields[at]] = fields[at + 1]
      size = size + #fields[at + 1]
    end
    if size < {_TOLD_BYTES} then text = text .. '\\n' .. cjson.encode(record) end
  end
  redis.call('PUBLISH', '{EVENTS}', text)
end

local function ring_bell(lane)
  local bell = BELL .. (string.find(lane, '-gpu', 1, true) and 'gpu' or 'any')
  if redis.call('EXISTS', bell) == 0 then redis.call('RPUSH', bell, 1) end
end

-- RQ lists a queue while something waits or runs in it.
local function show_in_rq(lane, owner)
  local name = lane .. '-' .. owner
  if redis.call('EXISTS', RQ_QUEUES .. name, RQ_STARTED .. name) > 0 then
    redis.call('SADD', '{RQ_QUEUES}', RQ_QUEUES .. name)
  else
    redis.call('SREM', '{RQ_QUEUES}', RQ_QUEUES .. name)
  end
end

-- Into its owner's list: at the end, or at the front what waited there before.
local function push(id, front)
  local lane, owner = get(id, 'lane', 'owner')
  if redis.call('EXISTS', RING .. lane) == 0 then redis.call('HSET', SERVED, lane, seconds(now())) end
  redis.call('ZADD', RING .. lane, 'NX', redis.call('HGET', SERVED, 'turn') or 0, owner)
  redis.call(front and 'LPUSH' or 'RPUSH', RQ_QUEUES .. lane .. '-' .. owner, id)
  show_in_rq(lane, owner)
  ring_bell(lane)
end

-- Out of whatever a queued job waits in.
local function unqueue(id)
  local lane, owner, leader = get(id, 'lane', 'owner', 'leader')
  redis.call('ZREM', DEADLINES, id)
  if leader then
    redis.call('SREM', FOLLOWERS .. leader, id)
    return
  end
  redis.call('ZREM', WAITING, id)
  if redis.call('ZREM', DELAYED, id) == 1 then return end
  local list = RQ_QUEUES .. lane .. '-' .. owner
  redis.call('LREM', list, 1, id)
  if redis.call('EXISTS', list) == 0 then redis.call('ZREM', RING .. lane, owner) end
end

local queues = {{}}
local function queue_of(lane)
  queues[lane] = queues[lane] or string.match(lane, '^%a+')
  return queues[lane]
end

local function count_enqueued(lane, operation)
  count('jobs_enqueued_total|' .. queue_of(lane) .. '|' .. operation)
end

local function enter_queue(id, front, delay, reason)
  local submitted_at, deadline = get(id, 'submitted_at', 'deadline')
  redis.call('HSET', JOB .. id, 'state', 'queued')
  redis.call('ZADD', WAITING, submitted_at, id)
  if deadline then redis.call('ZADD', DEADLINES, deadline, id) end
  if delay > 0 then
    redis.call('ZADD', DELAYED, seconds(now() + delay), id)
  else
    push(id, front)
  end
  tell(id, 'queued', reason and 'reason', reason)
end

-- End the attempt that runs: its lease, and what RQ shows of it.
local function leave(id)
  local lane, owner = get(id, 'lane', 'owner')
  redis.call('ZREM', LEASES, id)
  redis.call('ZREM', RQ_STARTED .. lane .. '-' .. owner, id .. ':1')
  show_in_rq(lane, owner)
end

local function release_inputs(id)
  local owner, inputs = get(id, 'owner', 'inputs')
  for _, array in ipairs(cjson.decode(inputs)) do
    redis.call('SREM', USES .. owner .. ':' .. array, id)
  end
end

local function keep_for(id, time)
  redis.call('EXPIRE', JOB .. id, time)
  redis.call('EXPIRE', EVENTS .. id, time)
end

-- Jobs that the release before this one queued have no operation in their record.
local function operation_of(id)
  return redis.call('HGET', JOB .. id, 'operation') or 'other'
end

local function count_ending(lane, operation, state, dead, failure)
  local queue, reason = queue_of(lane), ''
  if state == 'failed' and failure then reason = cjson.decode(failure).code or '' end
  count('jobs_finished_total|' .. queue .. '|' .. operation .. '|' .. state .. '|' .. reason)
  if state == 'failed' then count('job_failures_total|' .. queue .. '|' .. reason) end
  if dead then count('jobs_dead_total|' .. operation) end
end

-- Of jobs that another one was computed for: queue, state, submission, start. Its worker counts their times with its
-- own. Of private jobs none is counted, since a sampler's tells of its noise, nor of dead letters that were run again,
-- whose times are the operator's.
local followed = {{}}
local function tell_times(id, state)
  local lane, private, forgiven, submitted, started = get(id, 'lane', 'private', 'forgiven', 'submitted_at',
    'started_at')
  if private == '1' or forgiven or not started then return end
  followed[#followed + 1] = {{queue_of(lane), state, submitted, started}}
end

-- Enter a final state and tell whoever waits. A dead letter keeps its inputs, unless they are private.
local function settle_one(id, state, dead)
  local key = JOB .. id
  local before, lane, owner, result_ttl, private, operation, failure = get(id, 'state', 'lane', 'owner', 'result_ttl',
    'private', 'operation', 'error')
  count_ending(lane, operation or 'other', state, dead, failure)
  if before == 'running' then
    leave(id)
  else
    unqueue(id)
    show_in_rq(lane, owner)
  end
  redis.call('HSET', key, 'state', state, 'ended_at', seconds(now()))
  if state == 'succeeded' then
    redis.call('HSET', key, 'progress', 1, 'result_expires_at', seconds(now() + tonumber(result_ttl)))
  end
  redis.call('SREM', LIVE .. owner, id)
  redis.call('DEL', RQ_JOB .. id, RQ_JOB .. id .. ':dependents')
  if dead then
    redis.call('HSET', key, 'dead', 1)
    redis.call('ZADD', DEAD, seconds(now()), id)
  end
  if not dead or private == '1' then release_inputs(id) end
  if not dead then keep_for(id, math.ceil(tonumber(result_ttl)) + {TOMBSTONE_SECONDS}) end
  tell(id, state)
end

local function overdue(id)
  local deadline = redis.call('HGET', JOB .. id, 'deadline')
  return deadline and tonumber(deadline) <= now()
end

-- The same for a job and those it computes for. Where it was stopped rather than done, the first of them takes over.
local function settle(id, state, dead)
  local owner, same = get(id, 'owner', 'same')
  settle_one(id, state, dead)
  if not same then return end
  if redis.call('GET', SAME .. owner .. ':' .. same) == id then redis.call('DEL', SAME .. owner .. ':' .. same) end
  local followers = redis.call('SMEMBERS', FOLLOWERS .. id)
  redis.call('DEL', FOLLOWERS .. id)
  if #followers == 0 then return end
  table.sort(followers)
  if state == 'canceled' or state == 'expired' then
    local heir = table.remove(followers, 1)
    redis.call('HDEL', JOB .. heir, 'leader', 'progress')
    redis.call('SET', SAME .. owner .. ':' .. same, heir)
    for _, follower in ipairs(followers) do
      redis.call('HSET', JOB .. follower, 'leader', heir)
      redis.call('SADD', FOLLOWERS .. heir, follower)
    end
    enter_queue(heir, true, 0, 'the identical job that computed for it was ' .. state)
    return
  end
  local result, provenance, failure, started = get(id, 'result', 'provenance', 'error', 'started_at')
  for _, follower in ipairs(followers) do
    if overdue(follower) then
      settle_one(follower, 'expired', false)
    else
      local given = {{'coalesced', 1}}
      for name, value in pairs({{result = result, provenance = provenance, error = failure, started_at = started}}) do
        if value then table.insert(given, name) table.insert(given, value) end
      end
      redis.call('HSET', JOB .. follower, unpack(given))
      if result then redis.call('SADD', SHARED .. result, id, follower) end
      count('jobs_coalesced_total|' .. operation_of(follower))
      settle_one(follower, state, false)
      if not dead then tell_times(follower, state) end
    end
  end
  if result then redis.call('EXPIRE', SHARED .. result, redis.call('TTL', JOB .. id)) end
end

-- True when the attempt is the one that runs now, by the claim whose token has this digest; any other is a stale fence.
-- The number alone tells not enough: a Redis that has lost its memory gives it twice.
local function runs(id, attempt, digest)
  local state, current, claim = get(id, 'state', 'attempt', 'claim')
  return state == 'running' and current == attempt and claim == attempt .. ' ' .. digest
end

-- How often it was claimed, since it was run again as a dead letter if it was.
local function claims(id)
  local attempt, forgiven = get(id, 'attempt', 'forgiven')
  return tonumber(attempt) - tonumber(forgiven or 0)
end

-- Back to the front of the queue, or given up: what is run again for ever takes the place of others.
local function again(id, delay, reason, failure)
  local key = JOB .. id
  if tonumber(redis.call('HGET', key, 'strikes') or 0) >= {MAX_STRIKES} or claims(id) >= {MAX_ATTEMPTS} then
    redis.call('HSET', key, 'error', failure)
    settle(id, 'failed', true)
    return 'dead'
  end
  leave(id)
  redis.call('HDEL', key, 'started_at', 'worker', 'progress')
  redis.call('HSET', RQ_JOB .. id, 'status', 'queued', 'started_at', '', 'worker_name', '')
  enter_queue(id, true, delay, reason)
  return 'queued'
end

-- Its worker is gone or gives it back. That is not the job's fault: only from the third time on it has to wait.
local function give_back(id, reason, failure)
  local so_far = claims(id)
  return again(id, so_far < 3 and 0 or math.min(8, 0.5 * 2 ^ (so_far - 3)), reason, failure)
end

local function wake_delayed(till)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', DELAYED, '-inf', till or seconds(now()), 'LIMIT', 0, 64)) do
    redis.call('ZREM', DELAYED, id)
    if get(id, 'lane') then push(id, true) end
  end
end
"""
)

_CLAIMING = f"""
local PRIORITIES = {{{", ".join(f"'{priority}'" for priority in PRIORITIES)}}}
local AGING = {{{", ".join(f"{name} = {time}" for name, time in AGING_SECONDS.items())}}}

-- What a worker is told of an attempt. Of a dead letter that was run again no times are counted.
local function claimed(id, attempt)
  local request, mac, strikes, submitted, started, forgiven = get(id, 'request', 'mac', 'strikes', 'submitted_at',
    'started_at', 'forgiven')
  if forgiven then submitted, started = '', '' end
  return {{id, request or '', mac or '', attempt, tonumber(strikes or 0), submitted, started}}
end

-- What the worker's latest claim got, as far as it still has it; nil when that was another claim.
local function remembered(worker, token)
  local latest = redis.call('HGET', CLAIMS, worker)
  local before = latest and cjson.decode(latest)
  if not before or before.token ~= token then return nil end
  local answer = {{before.reason, seconds(now())}}
  for at, id in ipairs(before.ids) do
    if runs(id, before.attempts[at], token) then
      table.insert(answer, claimed(id, tonumber(before.attempts[at])))
    end
  end
  return answer
end

-- The bells of what is left, for others; silence where nothing is.
local function ring_for_others(kinds)
  for kind in string.gmatch(kinds, '%S+') do
    local left = false
    for _, priority in ipairs(PRIORITIES) do
      if redis.call('EXISTS', RING .. (kind == 'gpu' and priority .. '-gpu' or priority)) == 1 then left = true end
    end
    if not left then redis.call('DEL', BELL .. kind)
    elseif redis.call('EXISTS', BELL .. kind) == 0 then redis.call('RPUSH', BELL .. kind, 1) end
  end
end

-- What CLAIM answers, by its arguments' names.
local function claim(wish, rq_now)
  local worker, kinds, only, at = wish.worker, wish.kinds, wish.only or '', now()

  -- The lane to claim from: one that waited beyond its age, else the first by priority.
  local function choose()
    local first, aged, longest = nil, nil, 0
    for _, priority in ipairs(PRIORITIES) do
      for kind in string.gmatch(kinds, '%S+') do
        local lane = kind == 'gpu' and priority .. '-gpu' or priority
        if redis.call('EXISTS', RING .. lane) == 1 then
          -- A time to come was written before the clock was set back: nobody knows how long it waited, so it is aged.
          local waited = math.abs(at - tonumber(redis.call('HGET', SERVED, lane) or at))
          if not first or (first.priority == priority and waited > first.waited) then
            first = {{lane = lane, priority = priority, waited = waited}}
          end
          -- Once: where a batch takes longer than this age, whoever was served by it would be of age again, for ever.
          local passed_over = waited >= first.waited
          if passed_over and AGING[priority] > 0 and waited / AGING[priority] > math.max(1, longest) then
            aged, longest = lane, waited / AGING[priority]
          end
        end
      end
    end
    return aged or (first and first.lane)
  end

  -- A queued job in time, or nil; what is neither leaves the list. What is late is expired by whoever asks for it or
  -- by the reaper, which knows what to erase then.
  local function claimable(id, lane, owner)
    local list = RQ_QUEUES .. lane .. '-' .. owner
    local state, deadline, key, size, strikes, apart = get(id, 'state', 'deadline', 'key', 'size', 'strikes', 'apart')
    if state ~= 'queued' or (deadline and tonumber(deadline) <= at) then
      redis.call('LREM', list, 1, id)
      if redis.call('EXISTS', list) == 0 then
        redis.call('ZREM', RING .. lane, owner)
        show_in_rq(lane, owner)
      end
      return nil
    end
    return {{id = id, key = key, size = tonumber(size), alone = key == '' or strikes or apart, owner = owner}}
  end

  local batch, reason, lane, owners, passed = {{}}, 'drained', nil, {{}}, 0
  while #batch == 0 and passed < {_PASSED} do
    lane = choose()
    if not lane then break end
    owners = redis.call('ZRANGE', RING .. lane, 0, {_OWNERS - 1})
    for _, owner in ipairs(owners) do
      local list = RQ_QUEUES .. lane .. '-' .. owner
      while #batch == 0 and only == '' and passed < {_PASSED} do
        passed = passed + 1
        local id = redis.call('LINDEX', list, 0)
        if not id then break end
        batch[1] = claimable(id, lane, owner)
      end
      if redis.call('EXISTS', list) == 0 then redis.call('ZREM', RING .. lane, owner) end
      if #batch > 0 then break end
    end
    if only ~= '' then break end
  end

  local key, items, room = only, tonumber(wish.items), tonumber(wish.bytes)
  if #batch > 0 then
    local first = batch[1]
    key = first.key
    local most, bytes = get(first.id, 'items', 'bytes')
    items, room = tonumber(most), tonumber(bytes) - first.size
    if first.alone then items = 1 end
  end
  if lane and items > #batch and (#batch > 0 or only ~= '') then
    -- Owners in turn, so that a burst of one does not fill the batch.
    local chosen, place, looked = {{}}, {{}}, 0
    local ids = {{}}
    local window = math.max(16, math.floor({WINDOW} / math.max(1, #owners)))
    for turn, owner in ipairs(owners) do
      ids[turn] = redis.call('LRANGE', RQ_QUEUES .. lane .. '-' .. owner, 0, window - 1)
      place[turn] = 1
    end
    local start = 1
    for turn, owner in ipairs(owners) do
      if #batch > 0 and owner == batch[1].owner then start = turn + 1 end
    end
    if #batch > 0 then chosen[batch[1].id] = true end
    local turn, idle = start, 0
    while #owners > 0 and idle < #owners and #batch < items do
      if turn > #owners then turn = 1 end
      local found = nil
      while not found and place[turn] <= #ids[turn] and looked < {WINDOW} do
        local id = ids[turn][place[turn]]
        place[turn] = place[turn] + 1
        looked = looked + 1
        if not chosen[id] then
          local job = claimable(id, lane, owners[turn])
          if job and job.key == key and not job.alone then found = job end
        end
      end
      if found and found.size > room then
        reason = 'bytes'
        break
      end
      if found then
        chosen[found.id] = true
        table.insert(batch, found)
        room = room - found.size
        idle = 0
      else
        idle = idle + 1
      end
      turn = turn + 1
    end
    if #batch >= items then reason = 'full' end
  end
  if #batch == 1 and items == 1 then reason = 'full' end

  local answer = {{reason, seconds(at)}}
  local ids, attempts = {{}}, {{}}
  for _, job in ipairs(batch) do
    local id, record = job.id, JOB .. job.id
    unqueue(id)
    local attempt = redis.call('HINCRBY', record, 'attempt', 1)
    redis.call('HSET', record, 'state', 'running', 'started_at', seconds(at), 'worker', worker, 'process', wish.process,
      'claim', attempt .. ' ' .. wish.token)
    redis.call('ZADD', LEASES, seconds(at + tonumber(wish.lease)), id)
    -- What RQ's prepare_job_execution writes. Of an id RQ sees one execution at a time.
    redis.call('ZADD', RQ_STARTED .. lane .. '-' .. job.owner, seconds(at + {_RQ_EXECUTION_SECONDS}), id .. ':1')
    redis.call('HSET', RQ_JOB .. id, 'status', 'started', 'started_at', rq_now, 'last_heartbeat', rq_now,
      'worker_name', worker)
    tell(id, 'running')
    if attempt > 1 and claims(id) > 1 then count('job_retries_total|' .. operation_of(id)) end
    table.insert(answer, claimed(id, attempt))
    table.insert(ids, id)
    table.insert(attempts, tostring(attempt))
  end
  if #batch > 0 then
    redis.call('HSET', SERVED, lane, seconds(at))
    -- Who came last in this batch comes last in the next.
    local last = {{}}
    for place, job in ipairs(batch) do last[job.owner] = place end
    for place, job in ipairs(batch) do
      if last[job.owner] == place and redis.call('EXISTS', RQ_QUEUES .. lane .. '-' .. job.owner) == 1 then
        redis.call('ZADD', RING .. lane, redis.call('HINCRBY', SERVED, 'turn', 1), job.owner)
      end
    end
    local latest = {{token = wish.token, reason = reason, ids = ids, attempts = attempts}}
    redis.call('HSET', CLAIMS, worker, cjson.encode(latest))
    if redis.call('EXISTS', RQ_WORKER .. worker) == 1 then
      redis.call('HSET', RQ_WORKER .. worker, 'state', 'busy', 'current_job', ids[1], 'current_job_working_time', 0)
    end
  end
  ring_for_others(kinds)
  if #batch == 0 then
    local shown = RQ_WORKER .. worker
    if redis.call('HGET', shown, 'state') == 'busy' then
      redis.call('HSET', shown, 'state', 'idle', 'current_job_working_time', 0)
      redis.call('HDEL', shown, 'current_job')
    end
    return {{}}
  end
  return answer
end
"""

# id, owner, operation, request, its MAC or '', inputs, result_ttl, deadline or '', lane, key or '', items, bytes, size,
# private, idempotency key or '', fingerprint, same or '', most waiting or '', most of the owner or '', 1 where the
# queue is shared, now as RQ writes it, then field and value of RQ's record
#   ->  {'ok' | 'replayed' | 'reused' | 'full' | 'quota' | 'gone', the job's id, or numbers, or the arrays}
ENQUEUE = (
    _PRELUDE
    + _CLAIMING
    + f"""
local id, owner, operation, request, mac, inputs, result_ttl, deadline, lane, key, items, bytes, size, private,
  idempotency, fingerprint, same, most, most_of_owner, shared, rq_now = unpack(ARGV, 1, 21)
if redis.call('EXISTS', JOB .. id) == 1 then return {{'ok', id}} end  -- the same again, after a lost reply
untold = id
local replayed = '{IDEMPOTENCY}' .. owner .. ':' .. idempotency
if idempotency ~= '' then
  local before = redis.call('GET', replayed)
  if before then
    local known, job = string.match(before, '^(%S+) (%S+)$')
    return {{known == fingerprint and 'replayed' or 'reused', job}}
  end
end
local arrays, gone = cjson.decode(inputs), {{}}
for _, array in ipairs(arrays) do
  if redis.call('EXISTS', '{FORBIDDEN}' .. owner .. ':' .. array) == 1 then table.insert(gone, array) end
end
if #gone > 0 then return {{'gone', unpack(gone)}} end
local waiting, live = redis.call('ZCARD', WAITING), redis.call('SCARD', LIVE .. owner)
if most ~= '' and waiting >= tonumber(most) then return {{'full', waiting}} end
if most_of_owner ~= '' and live >= tonumber(most_of_owner) then return {{'quota', live}} end
local free = shared == '1' and tonumber(most) - waiting
local kept = free and live > 0 and free <= tonumber(most) / {_KEPT_FOR_NEWCOMERS}
if free and (live >= free or kept) then return {{'quota', live, free}} end

redis.call('HSET', JOB .. id, 'attempt', 0, 'submitted_at', seconds(now()), 'owner', owner, 'request', request,
  'mac', mac, 'inputs', inputs, 'result_ttl', result_ttl, 'lane', lane, 'key', key, 'items', items, 'bytes', bytes,
  'size', size, 'private', private, 'operation', operation)
count_enqueued(lane, operation)
if deadline ~= '' then redis.call('HSET', JOB .. id, 'deadline', deadline) end
if idempotency ~= '' then redis.call('SET', replayed, fingerprint .. ' ' .. id, 'EX', {IDEMPOTENCY_SECONDS}) end
redis.call('SADD', LIVE .. owner, id)
local mine = '{owner_key("")}' .. owner
redis.call('ZADD', mine, 0, id)
for _, oldest in ipairs(redis.call('ZRANGE', mine, 0, 1)) do  -- forget the ids of records whose time is over
  if redis.call('EXISTS', JOB .. oldest) == 0 then redis.call('ZREM', mine, oldest) end
end
for _, array in ipairs(arrays) do
  redis.call('SADD', USES .. owner .. ':' .. array, id)
end
redis.call('HSET', RQ_JOB .. id, unpack(ARGV, 22))

if same ~= '' then
  redis.call('HSET', JOB .. id, 'same', same)
  local leader = redis.call('GET', SAME .. owner .. ':' .. same)
  if leader and redis.call('SCARD', FOLLOWERS .. leader) < {_FOLLOWERS} then
    redis.call('HSET', JOB .. id, 'state', 'queued', 'leader', leader)
    redis.call('SADD', FOLLOWERS .. leader, id)
    if deadline ~= '' then redis.call('ZADD', DEADLINES, deadline, id) end
    tell(id, 'queued', 'reason', 'an identical job of the same key computes for it')
    pcall(keep_counts)
    return {{'ok', id}}
  end
  redis.call('SET', SAME .. owner .. ':' .. same, id)
end
enter_queue(id, false, 0)

-- To the worker that waits longest, if one does: it need not be rung for and ask. What it is handed is its claim.
local function hand_over()
  if redis.call('EXISTS', '{RQ_SUSPENDED}') == 1 then return end
  local gpu = string.find(lane, '-gpu', 1, true)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', IDLE, seconds(now() - {HOLDS_SECONDS}), seconds(now()))) do
    local wish, hand = cjson.decode(redis.call('HGET', WISHES, worker)), HANDED .. worker
    if not gpu or string.find(wish.kinds, 'gpu', 1, true) then
      wish.lease = {_HANDED_LEASE_SECONDS}
      redis.call('DEL', hand)
      local answer = claim(wish, rq_now)
      if #answer > 0 then
        redis.call('ZREM', IDLE, worker)
        redis.call('RPUSH', hand, cjson.encode({{token = wish.token, batch = answer}}))
        redis.call('EXPIRE', hand, {HANDED_SECONDS})
      end
      return
    end
  end
end
-- The job is queued, whatever comes of this: nothing that a script has done is taken back where it fails.
pcall(hand_over)
pcall(keep_counts)
return {{'ok', id}}
"""
)

# worker, process, digest of this claim's token, lease seconds, 'any' or 'any gpu', now as RQ writes it, '1' if it waits
# to be handed what comes where there is nothing now, key or '' for any, most items, most bytes (both of a claim for a
# key)
#   ->  {why the batch ends, the time, {id, request, its MAC, attempt, strikes, submitted at, started at} of each job};
#       {} when there is nothing to claim. The times are '' where none are counted
CLAIM = (
    _PRELUDE
    + _CLAIMING
    + """
local worker, process, token, lease, kinds, rq_now, waits, only, items, bytes = unpack(ARGV)
redis.call('DEL', HANDED .. worker)
local before = remembered(worker, token)
-- The same claim again, after a lost reply. One that waits goes on waiting where what it was handed was taken back.
if before and (#before > 2 or waits ~= '1') then
  redis.call('ZREM', IDLE, worker)
  ring_for_others(kinds)
  return before
end
wake_delayed()
local wish = {worker = worker, process = process, token = token, lease = lease, kinds = kinds, only = only,
  items = items, bytes = bytes}
local answer = claim(wish, rq_now)
if #answer == 0 and waits == '1' then
  local known = redis.call('HGET', WISHES, worker)
  if not known or cjson.decode(known).token ~= token then redis.call('HSET', WISHES, worker, cjson.encode(wish)) end
  redis.call('ZADD', IDLE, seconds(now()), worker)
else
  redis.call('ZREM', IDLE, worker)
end
pcall(keep_counts)
return answer
"""
)

# worker, digest of the token of the claim by which it waited  ->  what it was handed meanwhile, as CLAIM answers
LEAVE = (
    _PRELUDE
    + _CLAIMING
    + """
local worker, token = unpack(ARGV)
redis.call('ZREM', IDLE, worker)
redis.call('DEL', HANDED .. worker)
return remembered(worker, token) or {}
"""
)

# lease seconds, seconds after which a lease is renewed, then of each: id, attempt, digest of its claim's token
#   ->  of each 1 while the attempt is the one that runs, else 0
RENEW = (
    _PRELUDE
    + """
local lease, after = tonumber(ARGV[1]), tonumber(ARGV[2])
local answer = {}
for at = 3, #ARGV, 3 do
  local id, attempt, digest = unpack(ARGV, at, at + 2)
  local held = runs(id, attempt, digest)
  if held and tonumber(redis.call('ZSCORE', LEASES, id) or 0) < now() + lease - after then
    redis.call('ZADD', LEASES, 'XX', seconds(now() + lease), id)
  end
  table.insert(answer, held and 1 or 0)
end
return answer
"""
)

# worker or '', '1' if it is idle after this, then of each: id, attempt, digest of its claim's token, how, value,
# provenance or '', reason, delays
#   how   succeeded (value: the result's name), failed (value: the error), expired,
#         returned (not its fault; value: the error if it is given up, reason: why),
#         apart (the same, and it is claimed alone from now on: one of several ended the child),
#         struck (its own fault; the same),
#         retry (a fault that may pass; the same, delays: seconds before each next try, separated by spaces)
#   ->  {'done', 'queued', 'dead' or 'stale' of each}, the time, {queue, state, submission, start} of each job that one
#       of these was computed for
FINISH = (
    _PRELUDE
    + """
local worker, idle = ARGV[1], ARGV[2]
local answer, busy, good, bad = {}, 0, 0, 0

local function finish(id, attempt, digest, how, value, provenance, reason, delays)
  local key = JOB .. id
  local field = how == 'succeeded' and 'result' or 'error'
  if not runs(id, attempt, digest) then
    local state, current, before, dead, claim = get(id, 'state', 'attempt', field, 'dead', 'claim')
    -- The same finish again, after a lost reply, is the same commit.
    if current ~= attempt or claim ~= attempt .. ' ' .. digest then return 'stale' end
    if state == how and (how == 'expired' or before == value) then return 'done' end
    if how ~= 'returned' and how ~= 'apart' and how ~= 'struck' and how ~= 'retry' then return 'stale' end
    if state == 'queued' then return 'queued' end
    if state == 'failed' and before == value then return dead and 'dead' or 'done' end
    return 'stale'
  end
  -- First of all: a Redis that is full lets a script go on once it has deleted something.
  redis.call('ZREM', LEASES, id)
  local private, started = get(id, 'private', 'started_at')
  if private ~= '1' then busy = math.max(busy, now() - tonumber(started)) end  -- a sampler's time tells of its noise
  if how == 'succeeded' then good = good + 1 else bad = bad + 1 end
  if how == 'expired' then
    settle(id, how)
    return 'done'
  end
  if how == 'apart' then redis.call('HSET', key, 'apart', 1) end
  if how == 'returned' or how == 'apart' then return give_back(id, reason, value) end
  if how == 'struck' then
    redis.call('HINCRBY', key, 'strikes', 1)
    count('job_strikes_total|' .. operation_of(id))
    return again(id, 0, reason, value)
  end
  if how == 'retry' then
    local tries, delay = redis.call('HINCRBY', key, 'retries', 1), nil
    for text in string.gmatch(delays, '%S+') do
      tries = tries - 1
      if tries == 0 then delay = tonumber(text) end
    end
    if delay then return again(id, delay, reason, value) end
    how = 'failed'
  end
  redis.call('HSET', key, field, value)
  if provenance ~= '' then redis.call('HSET', key, 'provenance', provenance) end
  settle(id, how, false)
  return 'done'
end

for at = #ARGV - 7, 3, -8 do  -- from the last: what goes back to the front keeps its order
  table.insert(answer, 1, finish(unpack(ARGV, at, at + 7)))
end
pcall(keep_counts)
local shown = RQ_WORKER .. worker
if worker ~= '' and redis.call('EXISTS', shown) == 1 then
  if good > 0 then redis.call('HINCRBY', shown, 'successful_job_count', good) end
  if bad > 0 then redis.call('HINCRBY', shown, 'failed_job_count', bad) end
  redis.call('HINCRBYFLOAT', shown, 'total_working_time', seconds(busy))
  if idle == '1' then
    redis.call('HSET', shown, 'state', 'idle', 'current_job_working_time', 0)
    redis.call('HDEL', shown, 'current_job')
  end
end
return {answer, seconds(now()), followed}
"""
)

# the time after which leases are not judged, '1' if the clock has jumped, the longest lease, the error of a job that is
# given up, the most it looks at, then the names of dead workers
#   ->  {id, request, its MAC, attempt, 'queued' | 'dead' | 'gone'} of each attempt that was ended
REAP = (
    _PRELUDE
    + f"""
local jumped, longest, failure, most = ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local dead, ended, at = {{}}, {{}}, now()
local judge = at <= tonumber(ARGV[1])
for place = 6, #ARGV do dead[ARGV[place]] = true end
local leases = redis.call('ZRANGE', LEASES, 0, -1, 'WITHSCORES')
for place = #leases - 1, 1, -2 do  -- as finish does
  local id = leases[place]
  local state, worker, request, mac, attempt, lane = get(id, 'state', 'worker', 'request', 'mac', 'attempt', 'lane')
  local ends = tonumber(leases[place + 1])
  local late = judge and ends < at
  if ends > at + longest then  -- it began before the clock was set back
    redis.call('ZADD', LEASES, 'XX', seconds(at + longest), id)
  end
  if state ~= 'running' or not lane then
    redis.call('ZREM', LEASES, id)  -- Redis lost the record, or another release wrote it: it must not stop us
  elseif #ended < most and (late or dead[worker]) then
    local why = dead[worker] and 'its worker is gone' or 'its worker did not renew its claim'
    count('leases_expired_total')
    table.insert(ended, {{id, request, mac or '', tonumber(attempt), give_back(id, why, failure)}})
  end
end
wake_delayed(jumped and '+inf')  -- how much of a backoff is over nobody knows then
local left = most - #ended
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', seconds(at), 'LIMIT', 0, left)) do
  local state, lane, request, mac, attempt = get(id, 'state', 'lane', 'request', 'mac', 'attempt')
  if state == 'queued' and lane then
    settle(id, 'expired')
    table.insert(ended, {{id, request, mac or '', tonumber(attempt), 'gone'}})
  else
    redis.call('ZREM', DEADLINES, id)
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEAD, '-inf', seconds(at - {DEAD_SECONDS}), 'LIMIT', 0, most)) do
  redis.call('ZREM', DEAD, id)
  if redis.call('EXISTS', JOB .. id) == 1 then
    release_inputs(id)
    redis.call('DEL', JOB .. id, EVENTS .. id)
  end
end
pcall(keep_counts)
return ended
"""
)

# id  ->  nothing; a queued job whose deadline has passed becomes expired
EXPIRE_IF_OVERDUE = (
    _PRELUDE
    + """
local id = ARGV[1]
if redis.call('HGET', JOB .. id, 'state') == 'queued' and overdue(id) then settle(id, 'expired') end
pcall(keep_counts)
"""
)

# id, attempt, share that is done
PROGRESS = (
    _PRELUDE
    + """
local id, attempt, done = unpack(ARGV)
local state, current, private = get(id, 'state', 'attempt', 'private')
if state ~= 'running' or current ~= attempt or private == '1' then return end
redis.call('HSET', JOB .. id, 'progress', done)
tell(id, 'progress', 'progress', tonumber(done))
for _, follower in ipairs(redis.call('SMEMBERS', FOLLOWERS .. id)) do
  redis.call('HSET', JOB .. follower, 'progress', done)
  tell(follower, 'progress', 'progress', tonumber(done))
end
"""
)

# id  ->  jobs of its owner that will be claimed before it, as far as is known, or nil when it is not queued
POSITION = (
    _PRELUDE
    + f"""
local id = ARGV[1]
local state, lane, owner, leader = get(id, 'state', 'lane', 'owner', 'leader')
if state ~= 'queued' then return nil end
if leader then
  id = leader
  if redis.call('HGET', JOB .. id, 'state') ~= 'queued' then return 0 end
end
local kind, ahead = string.find(lane, '-gpu', 1, true) and '-gpu' or '', 0
for _, priority in ipairs({{{", ".join(f"'{priority}'" for priority in PRIORITIES)}}}) do
  local list = RQ_QUEUES .. priority .. kind .. '-' .. owner
  if priority .. kind == lane then return ahead + (redis.call('LPOS', list, id) or 0) end
  ahead = ahead + redis.call('LLEN', list)
end
"""
)

#   ->  {{priority, owner, how many ids wait} of each that has any}
WAITING_BY_OWNER = (
    _PRELUDE
    + f"""
local answer = {{}}
for _, priority in ipairs({{{", ".join(f"'{priority}'" for priority in PRIORITIES)}}}) do
  local counts = {{}}
  for _, lane in ipairs({{priority, priority .. '-gpu'}}) do
    for _, owner in ipairs(redis.call('ZRANGE', RING .. lane, 0, -1)) do
      counts[owner] = (counts[owner] or 0) + redis.call('LLEN', RQ_QUEUES .. lane .. '-' .. owner)
    end
  end
  for owner, count in pairs(counts) do table.insert(answer, {{priority, owner, count}}) end
end
return answer
"""
)

# most ids looked at  ->  {{queue, how many wait in its lists, run, wait out a backoff, submission of the oldest that
#   waits in a list or ''} of each, how many dead letters}
QUEUES = (
    _PRELUDE
    + f"""
local most, queues, names = tonumber(ARGV[1]), {{}}, {{{", ".join(f"'{priority}'" for priority in PRIORITIES)}}}
for _, name in ipairs(names) do
  local queue = {{name, 0, 0, 0, ''}}
  queues[name] = queue
  for _, lane in ipairs({{name, name .. '-gpu'}}) do
    for _, owner in ipairs(redis.call('ZRANGE', RING .. lane, 0, -1)) do
      local list = RQ_QUEUES .. lane .. '-' .. owner
      queue[2] = queue[2] + redis.call('LLEN', list)
      local first = redis.call('LINDEX', list, 0)
      local at = first and redis.call('HGET', JOB .. first, 'submitted_at')
      if at and (queue[5] == '' or tonumber(at) < tonumber(queue[5])) then queue[5] = at end
    end
  end
end
for place, key in pairs({{[3] = LEASES, [4] = DELAYED}}) do
  for _, id in ipairs(redis.call('ZRANGE', key, 0, most - 1)) do
    local lane = redis.call('HGET', JOB .. id, 'lane')
    local queue = lane and queues[string.match(lane, '^%a+')]
    if queue then queue[place] = queue[place] + 1 end
  end
end
local answer = {{}}
for _, name in ipairs(names) do table.insert(answer, queues[name]) end
return {{answer, redis.call('ZCARD', DEAD)}}
"""
)

_STOP = f"""
-- Cancel what is live. The state after, or nil for an unknown job.
local function stop(id)
  local state, worker = get(id, 'state', 'worker')
  if state == 'queued' then
    state = overdue(id) and 'expired' or 'canceled'
    settle(id, state)
  elseif state == 'running' then
    state = 'canceled'
    settle(id, state)
    -- RQ's own stop-job command, as rq.command.send_stop_job_command sends it.
    redis.call('PUBLISH', string.format('{RQ_COMMANDS}', worker),
      cjson.encode({{command = 'stop-job', job_id = id}}))
  end
  return state
end
"""

# id  ->  the state after, or nil for an unknown job
CANCEL = (
    _PRELUDE
    + _STOP
    + """
local state = stop(ARGV[1])
pcall(keep_counts)
return state
"""
)

_CLOSE = f"""
-- What the API ended stays ended for its workers' routes: a worker's account may write the record, and not this. It is
-- noted before anything that an odd record could make fail.
local function close(id)
  redis.call('SET', '{CLOSED}' .. id, 1, 'EX', {CLOSED_SECONDS})
end
"""

# id  ->  as CANCEL, for the API
CANCEL_AND_CLOSE = (
    _PRELUDE
    + _STOP
    + _CLOSE
    + """
local before = get(ARGV[1], 'state')
if before == 'queued' or before == 'running' then close(ARGV[1]) end
local state = stop(ARGV[1])
pcall(keep_counts)
return state
"""
)

# id, the request without parameters and inputs, its MAC or '', the inputs there were
#   ->  {result no other job has or '', array ids no live job of the owner reads}
ERASE = (
    _PRELUDE
    + _STOP
    + _CLOSE
    + f"""
local id, stripped, mac, inputs = unpack(ARGV)
local key, remembered = JOB .. id, '{ERASED}' .. id
local owner = get(id, 'owner')
if not owner then return {{''}} end
close(id)
stop(id)
pcall(keep_counts)
local result, dead, result_ttl = get(id, 'result', 'dead', 'result_ttl')
release_inputs(id)
if result then redis.call('SREM', SHARED .. result, id) end
local before = redis.call('GET', remembered)
if before then
  inputs, result = unpack(cjson.decode(before))  -- the same again, after a lost reply
else
  result = result or ''
  redis.call('SET', remembered, cjson.encode({{inputs, result}}), 'EX', {ERASED_SECONDS})
end
local answer = {{redis.call('EXISTS', SHARED .. result) == 1 and '' or result}}
for _, array in ipairs(cjson.decode(inputs)) do
  if redis.call('SCARD', USES .. owner .. ':' .. array) == 0 then table.insert(answer, array) end
end
-- Errors quote data, and digests of parameters can be guessed.
redis.call('HDEL', key, 'result', 'result_expires_at', 'error', 'provenance', 'progress', 'dead', 'key', 'same', 'size')
redis.call('HSET', key, 'request', stripped, 'mac', mac, 'inputs', '[]', 'erased', 1)
redis.call('DEL', EVENTS .. id)
if dead then
  redis.call('ZREM', DEAD, id)
  keep_for(id, math.ceil(tonumber(result_ttl)) + {TOMBSTONE_SECONDS})
end
return answer
"""
)

# id, the request without its deadline, its MAC or '', then field and value of RQ's record
#   ->  1, 0 when it is no dead letter, -1 when its inputs were let go of
RERUN = (
    _PRELUDE
    + """
local id = ARGV[1]
local key = JOB .. id
local dead, private, owner, inputs = get(id, 'dead', 'private', 'owner', 'inputs')
if not dead then
  local state, attempt, forgiven = get(id, 'state', 'attempt', 'forgiven')
  return state == 'queued' and attempt == forgiven and 1 or 0  -- the same again, after a lost reply
end
if private == '1' and inputs ~= '[]' then return -1 end
redis.call('ZREM', DEAD, id)
redis.call('HDEL', key, 'dead', 'strikes', 'apart', 'retries', 'error', 'ended_at', 'started_at', 'worker', 'progress',
  'deadline', 'same')
-- The fence goes on rising: its claims are counted from here.
redis.call('HSET', key, 'forgiven', redis.call('HGET', key, 'attempt'), 'request', ARGV[2],
  'mac', ARGV[3])
redis.call('PERSIST', key)
redis.call('PERSIST', EVENTS .. id)
redis.call('SADD', LIVE .. owner, id)
redis.call('HSET', RQ_JOB .. id, unpack(ARGV, 4))
enter_queue(id, true, 0, 'it was a dead letter and is run again')
count_enqueued(redis.call('HGET', key, 'lane'), operation_of(id))
pcall(keep_counts)
return 1
"""
)

# owner, array  ->  1, or 0 when a live job reads it
FORBID = (
    _PRELUDE
    + f"""
local owner, array = unpack(ARGV)
if redis.call('SCARD', USES .. owner .. ':' .. array) > 0 then return 0 end
redis.call('SET', '{FORBIDDEN}' .. owner .. ':' .. array, 1, 'EX', {FORBIDDEN_SECONDS})
return 1
"""
)

# process, number of its addition, '1' for an answer, then of each: field and amount  ->  the counts after it
COUNT = (
    _CLOCK
    + f"""
local process, number, asked = unpack(ARGV, 1, 3)
local known, hour = '{TALLY}' .. process, '{COUNTS}:' .. math.floor(now() / 3600)
local counted, hourly, families = {{}}, {{}}, {{}}
for _, family in ipairs({{'{"', '".join(HOURLY)}'}}) do families[family] = true end

local function add(field, amount)
  local name = string.match(field, '^[^{DEVICE}]+')  -- the hours alone know the devices
  counted[name] = (counted[name] or 0) + amount
  if families[string.match(name, '^[^|]+')] then hourly[field] = (hourly[field] or 0) + amount end
end

local function keep(key, amounts)
  local names = {{}}
  for name in pairs(amounts) do names[#names + 1] = name end
  for first = 1, #names, 1000 do  -- more than that Lua's stack may not take
    local some = {{unpack(names, first, math.min(first + 999, #names))}}
    local before, after = redis.call('HMGET', key, unpack(some)), {{}}
    for place, name in ipairs(some) do
      after[2 * place - 1] = name
      after[2 * place] = string.format('%.17g', (tonumber(before[place] or 0) or 0) + amounts[name])
    end
    redis.call('HSET', key, unpack(after))
  end
end

local fresh = redis.call('HGETALL', '{COUNTS_FRESH}')
for at = 1, #fresh, 2 do add(fresh[at], tonumber(fresh[at + 1])) end
local news = #ARGV > 3 and tonumber(redis.call('GET', known) or 0) < tonumber(number)
if news then
  for at = 4, #ARGV, 2 do add(ARGV[at], tonumber(ARGV[at + 1])) end
end
-- First what must not happen twice: should the rest fail, as by a right that is missing, what it was about to add is
-- lost, and nothing is counted again by whoever is next. And Redis lets a script go on once it has deleted something,
-- even if it is full.
if next(counted) then redis.call('DEL', '{COUNTS_FRESH}') end
if news then redis.call('SET', known, number, 'EX', {COUNTS_SECONDS}) end
if next(counted) then
  keep('{COUNTS}', counted)
  redis.call('HSETNX', '{COUNTS}', 'since', math.floor(now()))
end
if next(hourly) then
  keep(hour, hourly)
  redis.call('EXPIRE', hour, {COUNTS_SECONDS})
end
return asked == '1' and redis.call('HGETALL', '{COUNTS}') or {{}}
"""
)

# hour  ->  device, "operation|backend|size class", seconds and launches of each kind of launch in it; device '' for all
LAUNCHES = f"""
local fields, answer = redis.call('HGETALL', '{COUNTS}:' .. ARGV[1]), {{}}
local seconds, launches = {{}}, {{}}
for at = 1, #fields, 2 do
  if string.sub(fields[at], 1, 24) == 'kernel_duration_seconds|' then
    -- Hours of the release before this one name no device.
    local name, own = string.match(fields[at], '^([^{DEVICE}]+){DEVICE}?(.*)$')
    local kind, bucket = string.match(name, '^[^|]+|(.+)|([^|]+)$')
    for _, device in ipairs(own ~= '' and {{'', own}} or {{''}}) do
      local sums = bucket == 'sum' and seconds or launches
      sums[device] = sums[device] or {{}}
      sums[device][kind] = (sums[device][kind] or 0) + fields[at + 1]
    end
  end
end
for device, kinds in pairs(launches) do
  for kind, count in pairs(kinds) do
    table.insert(answer, device)
    table.insert(answer, kind)
    table.insert(answer, string.format('%.17g', (seconds[device] or {{}})[kind] or 0))
    table.insert(answer, count)
  end
end
return answer
"""

# worker, the slot it has or '', milliseconds  ->  the slot it has now: the same, or the smallest that is free
TAKE_SLOT = f"""
local worker, has, ttl = unpack(ARGV)
local slot = 0
if has ~= '' then
  local holder = redis.call('GET', '{SLOT}' .. has)
  if not holder or holder == worker then slot = tonumber(has) end
end
while true do
  local holder = redis.call('GET', '{SLOT}' .. slot)
  if not holder or holder == worker then break end
  slot = slot + 1
end
redis.call('SET', '{SLOT}' .. slot, worker, 'PX', ttl)
return slot
"""

# worker, slot: free it, unless it is another's by now
LEAVE_SLOT = f"""
local worker, slot = unpack(ARGV)
if redis.call('GET', '{SLOT}' .. slot) == worker then redis.call('DEL', '{SLOT}' .. slot) end
"""

# a command in JSON each  ->  1 if this user may, 0 if not, -1 for none of this server's; nil before Redis 7
MAY = """
if not redis.acl_check_cmd then return nil end
local told = {}
for index, line in ipairs(ARGV) do
  local known, may = pcall(redis.acl_check_cmd, unpack(cjson.decode(line)))
  told[index] = not known and -1 or (may and 1 or 0)
end
return told
"""

# All of them: what an API process loads into a Redis that was restarted.
SCRIPTS = (
    ENQUEUE, CLAIM, LEAVE, RENEW, FINISH, REAP, EXPIRE_IF_OVERDUE, PROGRESS, POSITION, WAITING_BY_OWNER, QUEUES, CANCEL,
    CANCEL_AND_CLOSE, ERASE, RERUN, FORBID, COUNT, LAUNCHES, TAKE_SLOT, LEAVE_SLOT, MAY,
)  # fmt: skip
