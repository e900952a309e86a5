-- Gives a running job back that its worker could not begin. ARGV: id, attempt. The attempt stays, for it is the fence, but
-- is not held against the job. Replies {'ok'}, {'canceled'} when a cancel was asked for: then the job stays as it is.
local id, attempt = ARGV[3], ARGV[4]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'inline', 'left', 'cancel', 'kind', 'queue', 'created')
if not j[1] then return {'notfound'} end
if j[1] == 'queued' and j[2] == attempt then return {'ok'} end -- the same call again, because its answer got lost
if not JOBS[j[1]]['queued'] or j[2] ~= attempt then return {'fenced'} end
if j[6] == '1' then return {'canceled'} end
call('HSET', k, 'state', 'queued')
call('HDEL', k, 'worker', 'started', 'qms')
call('HINCRBY', k, 'spared', 1)
stateEvent(id, '', 'queued')
if j[4] ~= '1' and j[5] ~= '1' then free(j[3], false) end
if not urgent(j[7]) then -- it has had its turn, so it is not held again
  local q = queueOf(j[8], j[4] == '1', j[3])
  call('HSET', k, 'aq', q)
  call('ZADD', key('out', q), j[9], id)
end
return {'ok'}
