-- The Lua of Redis. What is checked are the scripts as they are sent: python -m warpdesk_server.workers.queue.scripts
std = "lua51"
read_globals = {"redis", "cjson", "KEYS", "ARGV"}
max_line_length = false  -- the line of constants; ours are checked in the sources
