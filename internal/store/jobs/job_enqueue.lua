-- Puts the task of an unfinished job into its queue if the job has this attempt still, and no task of it waits there. ARGV: id, attempt, how
-- many further tasks there may be, see enqueue. Replies {'ok', '1' if a task was added, '1' if all that are there are active}.
local id, attempt, more = ARGV[3], ARGV[4], tonumber(ARGV[5])
local j = call('HMGET', jobKey(id), 'state', 'attempt')
if not j[1] or final(JOBS, j[1]) or j[2] ~= attempt then return {'ok', '', ''} end
local found = enqueue(id, more)
return {'ok', flag(not found), flag(found == 'active')}
