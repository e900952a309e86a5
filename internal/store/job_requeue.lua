-- Requeues a running job that its worker could not start. ARGV: id, attempt. The attempt number stays, since it is the fence, but does not
-- count as a crash. Replies {'ok'}, {'fenced'}, {'notfound'}, or {'canceled'} if a cancel was requested: then the job stays as it is.
local id, attempt = ARGV[3], ARGV[4]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'inline', 'left', 'cancel', 'kind', 'queue', 'created')
local state, box, inline, outsideFIFO, kind = j[1], j[3], j[4] == '1', j[5] == '1', j[7]
if not state then return {'notfound'} end
if state == 'queued' and j[2] == attempt then return {'ok'} end -- a retry of a call whose answer was lost
if not JOBS[state]['queued'] or j[2] ~= attempt then return {'fenced'} end
if j[6] == '1' then return {'canceled'} end
call('HSET', k, 'state', 'queued')
call('HDEL', k, 'worker', 'started', 'qms')
call('HINCRBY', k, 'spared', 1)
appendStateEvent(id, '', 'queued')
call('XTRIM', key('ev', id), 'MAXLEN', 500) -- a job may be requeued for days
if not inline and not outsideFIFO then freeSandbox(box, false) end
if not urgent(kind) then -- it keeps a slot even if that is one too many: it has waited for one before
  local q = queueOf(j[8], inline, box)
  call('HSET', k, 'aq', q)
  call('ZADD', slotsKey(q), j[9], id)
end
return {'ok'}
