-- Claims: which jobs a worker gets.
--@include clock
--@include records
--@include counting
--@include events
--@include rq
--@include lanes
--@include kinds
--@include attempts
--@include sparing
--@include shards

-- An attempt, as a claim answers it. The times of a dead letter that was run again are not counted.
local function claimed(id, attempt)
  local job = shard_of(id)
  if job then
    local request, mac, attached = get(job, 'request', 'mac', 'attached')
    return {id, request or '', mac or '', attempt, 0, '', '', attached or nil}
  end
  local request, mac, strikes, submitted, started, forgiven, attached, checkpoint, gpu_wait = get(id, 'request', 'mac',
    'strikes', 'submitted_at', 'started_at', 'forgiven', 'attached', 'checkpoint', 'gpu_wait')
  if forgiven then submitted, started = '', '' end
  if gpu_wait then checkpoint = checkpoint or '' end
  if checkpoint then attached = attached or '' end
  return {id, request or '', mac or '', attempt, tonumber(strikes or 0), submitted, started, attached or nil,
    checkpoint or nil, gpu_wait or nil}
end

-- What the worker's latest claim got, as far as it still has it; nil when that was another claim.
local function remembered(worker, token)
  local latest = redis.call('HGET', const.CLAIMS, worker)
  local before = latest and cjson.decode(latest)
  if not before or before.token ~= token then return nil end
  local answer = {before.reason, seconds(now())}
  for at, id in ipairs(before.ids) do
    if runs(id, before.attempts[at], token) then
      table.insert(answer, claimed(id, tonumber(before.attempts[at])))
    end
  end
  return answer
end

-- The bells of what is left, for others; silence where nothing is. A `quiet` claim has found only what its worker cannot
-- run: it would ring for itself, for ever. Who can asks within a second.
local function ring_for_others(kinds, quiet)
  for kind in string.gmatch(kinds, '%S+') do
    local left = false
    for _, priority in ipairs(const.PRIORITIES) do
      local lane = lane_of(priority, kind)
      if redis.call('EXISTS', const.RING .. lane, const.RING .. 'shards:' .. lane) > 0 then left = true end
    end
    if not left then redis.call('DEL', const.BELL .. kind)
    elseif not quiet and redis.call('EXISTS', const.BELL .. kind) == 0 then redis.call('RPUSH', const.BELL .. kind, 1) end
  end
end

-- Claim a shard, and answer it as a batch.
local function claim_shard(wish, job, number)
  local id, attempt = take_shard(job, number, wish.worker, wish.process, wish.token, wish.lease)
  local latest = {token = wish.token, reason = 'full', ids = {id}, attempts = {tostring(attempt)}}
  redis.call('HSET', const.CLAIMS, wish.worker, cjson.encode(latest))
  if redis.call('EXISTS', const.RQ_WORKER .. wish.worker) == 1 then mirror_busy(wish.worker, job) end
  return {'full', seconds(now()), claimed(id, attempt)}
end

-- What CLAIM answers, by its arguments' names.
local function claim(wish, rq_now)
  local worker, kinds, only, at = wish.worker, wish.kinds, wish.only or '', now()
  local tasks, unable, dry = wish.tasks or '', false, {}

  -- Whether the worker can run the job. A task that it cannot stays where it is.
  local function able(id)
    local found = tasks == '' or string.find(tasks, ' ' .. operation_of(id) .. ' ', 1, true)
    unable = unable or not found
    return found
  end

  -- The lane to claim from: one that waited beyond its age, else the first by priority.
  local function choose()
    local first, aged, longest = nil, nil, 0
    for _, priority in ipairs(const.PRIORITIES) do
      for kind in string.gmatch(kinds, '%S+') do
        local lane = lane_of(priority, kind)
        if not dry[lane] and redis.call('EXISTS', const.RING .. lane) == 1 then
          -- A time to come was written before the clock was set back: nobody knows how long it waited, so it is aged.
          local waited = math.abs(at - tonumber(redis.call('HGET', const.SERVED, lane) or at))
          if not first or (first.priority == priority and waited > first.waited) then
            first = {lane = lane, priority = priority, waited = waited}
          end
          -- Once: where a batch takes longer than this age, whoever was served by it would be of age again, for ever.
          local passed_over = waited >= first.waited
          local age = const.AGING_SECONDS[priority]
          if passed_over and age > 0 and waited / age > math.max(1, longest) then
            aged, longest = lane, waited / age
          end
        end
      end
    end
    return aged or (first and first.lane)
  end

  -- A queued job in time, or nil; what is neither leaves the list. What is late is expired by whoever asks for it or
  -- by the reaper, which knows what to erase then.
  local function claimable(id, lane, owner)
    if not able(id) then return nil end
    local list = const.RQ_QUEUE .. lane .. '-' .. owner
    local state, deadline, key, size, strikes, apart = get(id, 'state', 'deadline', 'key', 'size', 'strikes', 'apart')
    if state ~= const.QUEUED or (deadline and tonumber(deadline) <= at) then
      redis.call('LREM', list, 1, id)
      if redis.call('EXISTS', list) == 0 then
        redis.call('ZREM', const.RING .. lane, owner)
        mirror_queue(lane, owner)
      end
      return nil
    end
    return {id = id, key = key, size = tonumber(size), alone = key == '' or strikes or apart, owner = owner}
  end

  local batch, reason, lane, owners, passed = {}, 'drained', nil, {}, 0
  local spares, left, gpu_wait = only == '' and (wish.gpus or '') ~= '', {}, nil
  if spares then
    batch[1], lane, gpu_wait, left = sooner_here(wish.gpus, kinds, claimable)
    if lane then owners = redis.call('ZRANGE', const.RING .. lane, 0, const.OWNERS - 1) end
  end
  while not spares and #batch == 0 and passed < const.PASSED do
    lane = choose()
    if not lane then break end
    owners = redis.call('ZRANGE', const.RING .. lane, 0, tasks == '' and const.OWNERS - 1 or -1)
    for _, owner in ipairs(owners) do
      local list, place = const.RQ_QUEUE .. lane .. '-' .. owner, 0
      while #batch == 0 and only == '' and passed < const.PASSED do
        passed = passed + 1
        local id = redis.call('LINDEX', list, place)
        if not id then break end
        if able(id) then batch[1] = claimable(id, lane, owner) else place = place + 1 end
      end
      if redis.call('EXISTS', list) == 0 then redis.call('ZREM', const.RING .. lane, owner) end
      if #batch > 0 then break end
    end
    dry[lane] = unable and #batch == 0
    if only ~= '' then break end
  end

  local helped, number = nil, nil
  if #batch == 0 and only == '' and not wish.no_shards then
    helped, number = shard_to_help(kinds, spares)
    if not helped then
      local slow, of_lane, owner = overtake(worker, kinds)
      if slow then batch[1], lane = claimable(slow, of_lane, owner), of_lane end
    end
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
    local chosen, place, looked = left, {}, 0
    local ids = {}
    local window = math.max(16, math.floor(const.WINDOW / math.max(1, #owners)))
    for turn, owner in ipairs(owners) do
      ids[turn] = redis.call('LRANGE', const.RQ_QUEUE .. lane .. '-' .. owner, 0, window - 1)
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
      while not found and place[turn] <= #ids[turn] and looked < const.WINDOW do
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

  local answer = {reason, seconds(at)}
  local ids, attempts = {}, {}
  for _, job in ipairs(batch) do
    local id, record = job.id, const.JOB .. job.id
    unqueue(id)
    local attempt = redis.call('HINCRBY', record, 'attempt', 1)
    redis.call('HSET', record, 'state', const.RUNNING, 'started_at', seconds(at), 'worker', worker,
      'process', wish.process, 'claim', attempt .. ' ' .. wish.token)
    if gpu_wait then redis.call('HSET', record, 'gpu_wait', seconds(gpu_wait)) end
    redis.call('ZADD', const.LEASES, seconds(at + tonumber(wish.lease)), id)
    mirror_started(id, lane, job.owner, worker, at, rq_now)
    add_event(id, const.RUNNING)
    if attempt > 1 and claims(id) > 1 then count('job_retries_total', operation_of(id)) end
    table.insert(answer, claimed(id, attempt))
    table.insert(ids, id)
    table.insert(attempts, tostring(attempt))
  end
  if #batch > 0 then
    redis.call('HSET', const.SERVED, lane, seconds(at))
    -- Who came last in this batch comes last in the next.
    local last = {}
    for place, job in ipairs(batch) do last[job.owner] = place end
    for place, job in ipairs(batch) do
      if last[job.owner] == place and redis.call('EXISTS', const.RQ_QUEUE .. lane .. '-' .. job.owner) == 1 then
        redis.call('ZADD', const.RING .. lane, redis.call('HINCRBY', const.SERVED, 'turn', 1), job.owner)
      end
    end
    local latest = {token = wish.token, reason = reason, ids = ids, attempts = attempts}
    redis.call('HSET', const.CLAIMS, worker, cjson.encode(latest))
    if redis.call('EXISTS', const.RQ_WORKER .. worker) == 1 then
      mirror_busy(worker, ids[1])
    end
  end
  if helped then answer = claim_shard(wish, helped, number) end
  ring_for_others(kinds, unable and #answer == 2)
  if #batch == 0 and #answer == 2 then
    if redis.call('HGET', const.RQ_WORKER .. worker, 'state') == 'busy' then mirror_idle(worker) end
    return {}
  end
  return answer
end
