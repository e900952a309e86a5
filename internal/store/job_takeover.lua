-- Offers a running job to other workers, since its own one stops in order: it stays running, without a worker, and the attempt does not
-- count as a crash. ARGV: id, attempt, the name that means no worker.
local id, attempt, noWorker = ARGV[3], ARGV[4], ARGV[5]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'worker')
if not j[1] then return {'notfound'} end
if j[1] ~= 'running' or j[2] ~= attempt then return {'fenced'} end
if j[3] ~= noWorker then -- else this is a retry of a call whose answer was lost
  call('HINCRBY', k, 'spared', 1)
  call('HSET', k, 'worker', noWorker)
end
return {'ok'}
