-- wrk's requests of `python -m benchmarks servers`: a new body each time, from the file that is named first, which has a
-- body in each line with @ for the period. What follows are headers: name, value, name, value.

local bodies, sent = {}, 0

function init(args)
  for line in io.lines(args[1]) do bodies[#bodies + 1] = line end
  for at = 2, #args, 2 do wrk.headers[args[at]] = args[at + 1] end
  wrk.headers['Content-Type'] = 'application/json'
  math.randomseed(os.time())
  sent = math.random(0, 900) * #bodies
end

function request()
  local body = bodies[sent % #bodies + 1]
  local period = 2 + math.floor(sent / #bodies) % 900
  sent = sent + 1
  return wrk.format('POST', nil, nil, (string.gsub(body, '@', period)))
end

function done(summary, latency)
  local wrong = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  io.write(string.format('result %d %f %f %f %d\n', summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, wrong))
end
