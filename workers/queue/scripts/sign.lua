-- Sign the requests in job records that have no MAC.
-- Arguments: of each job its id and the MAC of its request.

redis.call('DEL', const.HANDED)  -- no such key: after a DEL a script may write where Redis is full
for index = 1, #ARGV, 2 do
  local job = const.JOB .. ARGV[index]
  if redis.call('EXISTS', job) == 1 then redis.call('HSETNX', job, 'mac', ARGV[index + 1]) end
end
