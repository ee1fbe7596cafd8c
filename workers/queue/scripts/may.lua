-- Whether this user may run some commands.
-- Arguments: a command in JSON each.
-- Answer: of each 1 if it may, 0 if not, -1 for a command that this server does not have; nil before Redis 7.

if not redis.acl_check_cmd then return nil end
local answers = {}
for index, line in ipairs(ARGV) do
  local exists, may = pcall(redis.acl_check_cmd, unpack(cjson.decode(line)))
  answers[index] = not exists and -1 or (may and 1 or 0)
end
return answers
