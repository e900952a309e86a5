-- Stores what a takeover of a running job needs. ARGV: id, attempt, bytes.
local j = call('HMGET', jobKey(ARGV[3]), 'state', 'attempt')
if not j[1] then return {'notfound'} end
if j[1] ~= 'running' or j[2] ~= ARGV[4] then return {'fenced'} end
chargeJob(ARGV[3], #ARGV[5] - call('STRLEN', checkpointKey(ARGV[3])))
call('SET', checkpointKey(ARGV[3]), ARGV[5])
return {'ok'}
