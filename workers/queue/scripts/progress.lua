-- Note how far a running job is.
-- Arguments: id, attempt, the share that is done.
--@include events

local id, attempt, done = unpack(ARGV)
local state, current, private = get(id, 'state', 'attempt', 'private')
if state ~= const.RUNNING or current ~= attempt or private == '1' then return end
note_progress(id, done)
