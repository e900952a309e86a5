-- Changes what a caller may change of a sandbox. ARGV: id, then name, labels, ttl, idle, each behind '1' when it is set, then the
-- hint for the workers.
local k = key('sbx', ARGV[3])
local state = call('HGET', k, 'state')
if not state then return {'notfound'} end
if not ACCEPTS[state] then return {'state', state} end
if ARGV[4] == '1' then call('HSET', k, 'name', ARGV[5]) end
if ARGV[6] == '1' then call('HSET', k, 'labels', ARGV[7]) end
if ARGV[8] == '1' then call('HSET', k, 'ttl', ARGV[9], 'expires', int(tonumber(NOW) + tonumber(ARGV[9]) * 1000000)) end
if ARGV[10] == '1' then call('HSET', k, 'idle', ARGV[11]) end
due(ARGV[3])
if ARGV[8] == '1' then call('PUBLISH', G .. 'cancel', ARGV[12]) end -- the sandbox's agent must know
return {'ok', call('HGETALL', k)}
