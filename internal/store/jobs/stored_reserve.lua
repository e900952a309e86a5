-- Sets how many bytes a running job may still record as artifacts. They count as stored until the job ends. Replies {'ok'}, {'fenced'},
-- {'notfound'}, or {'full', how many bytes the job could have}.
local k, stored = jobKey(arg.job), STORED
local j = call('HMGET', k, 'state', 'attempt', 'reserved')
if not j[1] then return {'notfound'} end
if j[1] ~= 'running' or j[2] ~= arg.attempt then return {'fenced'} end
local had, want, limit = tonumber(j[3]) or 0, tonumber(arg.bytes), quota('max_stored_mb')
local free = limit * 1048576 - storedUsed() + had
if limit >= 0 and want > had and want > free then return {'full', int(math.max(free, 0))} end
call('HSET', k, 'reserved', int(want))
call('HINCRBY', stored, 'reserved', int(want - had))
return {'ok'}
