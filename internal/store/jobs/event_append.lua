-- Appends events to a job that is not final. ARGV: id, attempt under which it must run (0: any), bytes that the window may have, then an id
-- ('' for the next one) and the JSON of each event. Replies {'ok'}, {'fenced'}, {'notfound'}, or {'full'} if the window has no room for
-- them: then nothing is written.
local id, attempt, window = ARGV[3], ARGV[4], tonumber(ARGV[5])
local k = jobKey(id)
local j = call('HMGET', k, 'state', 'attempt', 'ev', 'win')
if not j[1] then return {'notfound'} end
if final(JOBS, j[1]) then return {'ok'} end
if attempt ~= '0' and attempt ~= j[2] then return {'fenced'} end
local new, size = newerEvents(j[3] or '0-0', ARGV, 6)
if #new == 0 then return {'ok'} end
size = size + tonumber(j[4] or '0')
if size > window then return {'full'} end
addEvents(id, new)
call('HSET', k, 'win', int(size))
chargeJob(id, size - tonumber(j[4] or '0'))
notifyWatchers(id)
return {'ok'}
