-- Jobs that a worker without a GPU leaves to those that have one: they are predicted to end sooner there.
--@include clock
--@include records
--@include kinds

-- Seconds until each of these workers has ended its launch, as predicted; math.huge where nothing is predicted.
local function busy_seconds(workers)
  local busy = {}
  for worker in string.gmatch(workers, '%S+') do
    local latest, took, started = redis.call('HGET', const.CLAIMS, worker), 0, nil
    for _, id in ipairs(latest and cjson.decode(latest).ids or {}) do
      local state, by, since, on_gpu = get(id, 'state', 'worker', 'started_at', 'on_gpu')
      if state == const.RUNNING and by == worker then
        took, started = took + (tonumber(on_gpu) or math.huge), tonumber(since)
      end
    end
    -- What is late is expected to take as long again as it is late.
    table.insert(busy, started and math.abs(started + took - now()) or 0)
  end
  return busy
end

-- The queued lists of a priority, of these kinds and of the same for GPUs, each with some of its first ids.
local function lists_of(priority, kinds)
  local lists = {}
  for kind in string.gmatch(kinds, '%S+') do
    for place, one in ipairs({kind, kind == 'any' and 'gpu' or kind .. '-gpu'}) do
      local lane = lane_of(priority, one)
      for _, owner in ipairs(redis.call('ZRANGE', const.RING .. lane, 0, const.OWNERS - 1)) do
        table.insert(lists, {lane = lane, owner = owner, here = place == 1})
      end
    end
  end
  local most = math.ceil(const.SPARED / math.max(1, #lists))
  for _, list in ipairs(lists) do
    list.ids = redis.call('LRANGE', const.RQ_QUEUE .. list.lane .. '-' .. list.owner, 0, most - 1)
  end
  return lists
end

-- The first job that ends sooner on the CPU than behind those that workers with a GPU take before it.
-- Where that is not predicted, the first for which no GPU is free. A lane from which nobody claimed for as long as the
-- CPU would have taken shows that the prediction was wrong: its first job is taken.
-- Answer: what `claimable` says of it, its lane, its wait for a GPU or -1 where that is not known, the ids that are left.
local function sooner_here(workers, kinds, claimable)
  local busy, left, looked = busy_seconds(workers), {}, 0
  for _, priority in ipairs(const.PRIORITIES) do
    local lists = lists_of(priority, kinds)
    for place = 1, const.SPARED do
      for _, list in ipairs(lists) do
        local id = list.ids[place]
        if id and looked < const.SPARED then
          looked = looked + 1
          local first = 1
          for at in ipairs(busy) do if busy[at] < busy[first] then first = at end end
          local on_gpu, on_cpu = get(id, 'on_gpu', 'on_cpu')
          local took, wait = tonumber(on_cpu), busy[first]
          local ends = wait + (tonumber(on_gpu) or math.huge)
          local predicted = took and ends < math.huge
          local unserved = math.abs(now() - tonumber(redis.call('HGET', const.SERVED, list.lane) or now()))
          local sooner = took == 0 or wait > 0
          if predicted then sooner = took <= ends end
          if list.here and (sooner or unserved > (took or const.UNPREDICTED_SECONDS)) then
            local job = claimable(id, list.lane, list.owner)
            if job then return job, list.lane, predicted and (sooner and wait or unserved) or -1, left end
          else
            left[id], busy[first] = true, ends
          end
        end
      end
    end
  end
  return nil, nil, nil, left
end
