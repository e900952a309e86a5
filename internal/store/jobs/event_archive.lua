-- Replaces the window of a job's events by segments in the object store, which have all events of the window and maybe more. The job must run
-- under the attempt (0: any), and expected must be the id of its last event: otherwise the segments are not complete.
-- Replies {'ok'}, {'moved'}, {'final'}, {'fenced'}, {'notfound'}, or {'full', the quota, what is used, what this call adds} in bytes.
local k = jobKey(arg.id)
local j = call('HMGET', k, 'state', 'attempt', 'ev', 'win')
if not j[1] then return {'notfound'} end
if final(JOBS, j[1]) then return {'final'} end
if arg.attempt ~= '0' and arg.attempt ~= j[2] then return {'fenced'} end
if (j[3] or '0-0') ~= arg.expected then return {'moved'} end
local full = storedFull(tonumber(arg.bytes), 0)
if full then return full end
call('DEL', eventsKey(arg.id))
if j[4] then chargeJob(arg.id, -tonumber(j[4])) end
call('RPUSH', segmentsKey(arg.id), unpack(cjson.decode(arg.segments)))
call('HSET', k, 'ev', arg.last, 'arc', arg.last, 'win', '0')
if call('HSETNX', k, 'docs', '1') == 1 then call('ZADD', DOCUMENTS, 'inf', arg.id) end
addKept(arg.id, tonumber(arg.bytes))
notifyWatchers(arg.id)
return {'ok'}
