-- Lets a running job go on with another worker at once, because its own one stops in order: it stays as it is, but no
-- worker has it, and the attempt is not held against it. ARGV: prefix, now, id, attempt, what stands for no worker.
local k = KEYS[1] .. 'job:' .. ARGV[3]
local j = redis.call('HMGET', k, 'state', 'attempt', 'worker')
if not j[1] then return {'notfound'} end
if j[1] ~= 'running' or j[2] ~= ARGV[4] then return {'fenced'} end
if j[3] ~= ARGV[5] then -- else it is the same call again, because its answer got lost
  redis.call('HINCRBY', k, 'spared', 1)
  redis.call('HSET', k, 'worker', ARGV[5])
end
return {'ok'}
