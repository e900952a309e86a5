-- Stores what a takeover of a running job needs. ARGV: id, attempt, bytes.
local j = call('HMGET', key('job', ARGV[3]), 'state', 'attempt')
if not j[1] then return {'notfound'} end
if j[1] ~= 'running' or j[2] ~= ARGV[4] then return {'fenced'} end
chargeJob(ARGV[3], #ARGV[5] - call('STRLEN', key('cp', ARGV[3])))
call('SET', key('cp', ARGV[3]), ARGV[5])
return {'ok'}
