-- Gives a job to a worker. ARGV: id, worker, a worker known to be dead or ''.
-- Replies {'ok', job, request, sandbox}, {'notfound'}, {'final', state}, {'owned', worker}, {'waiting'}.
local id, worker, dead = ARGV[3], ARGV[4], ARGV[5]
local k = jobKey(id)
local j = call('HMGET', k, 'state', 'attempt', 'worker', 'sandbox', 'created', 'inline', 'left', 'kind')
local state, attempt, owner, box, kind = j[1], j[2], j[3], j[4], j[8]
local inline, outsideFIFO = j[6] == '1', j[7] == '1'
if not state then return {'notfound'} end
if not JOBS[state]['running'] then return {'final', state} end
if state == 'running' and owner ~= worker and (dead == '' or owner ~= dead) then return {'owned', owner} end
if state == 'queued' and not inline and not outsideFIFO and call('LINDEX', fifoKey(box), 0) ~= id then return {'waiting'} end

if state == 'queued' then
  if inline then
    keepQueueSlot(id)
  else
    call('SADD', ACTIVE, id)
    freeQueueSlot(id)
  end
end
-- The worker lives, and does not have the job: it has not heard of its claim, or could not store the end of the job. That is no crash.
if state == 'running' and owner == worker then call('HINCRBY', k, 'spared', 1) end
call('HSET', k, 'state', 'running', 'worker', worker, 'attempt', attempt + 1)
if state == 'queued' then
  call('HSET', k, 'started', NOW, 'qms', string.format('%.3f', (tonumber(NOW) - tonumber(j[5])) / 1000))
  appendStateEvent(id, attempt == '0' and '0-2' or '', 'running') -- not the first one if the job was requeued
end
if not inline and not outsideFIFO and (kind == 'execute' or kind == 'command' or kind == 'file' or kind == 'install') and
  call('HGET', sandboxKey(box), 'state') == 'ready' then
  setSandboxState(box, 'busy')
end
return {'ok', call('HGETALL', k), call('GET', requestKey(id)), call('HGETALL', sandboxKey(box))}
