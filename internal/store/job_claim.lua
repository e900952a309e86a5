-- Gives a job to a worker, with everything that the worker needs. ARGV: id, worker, a worker known to be dead.
local id, worker, dead = ARGV[3], ARGV[4], ARGV[5]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'worker', 'sandbox', 'created', 'inline', 'left', 'kind')
local state, box, inline, left, kind = j[1], j[4], j[6] == '1', j[7] == '1', j[8]
if not state then return {'notfound'} end
if not JOBS[state]['running'] then return {'final', state} end
if state == 'running' and j[3] ~= worker and (dead == '' or j[3] ~= dead) then return {'held', j[3]} end
if state == 'queued' and not inline and call('LINDEX', key('line', box), 0) ~= id then return {'waiting'} end

local next = ''
if state == 'queued' then next = begun(id) end
call('HSET', k, 'state', 'running', 'worker', worker, 'attempt', j[2] + 1)
if state == 'queued' then
  call('HSET', k, 'started', NOW, 'qms', string.format('%.3f', (tonumber(NOW) - tonumber(j[5])) / 1000))
  stateEvent(id, j[2] == '0' and '0-2' or '', 'running') -- again, when it was given back before
end
if not inline and not left and (kind == 'execute' or kind == 'command' or kind == 'file' or kind == 'install') and
  call('HGET', key('sbx', box), 'state') == 'ready' then
  setBox(box, 'busy')
end
return {'ok', call('HGETALL', k), call('GET', key('req', id)), call('HGETALL', key('sbx', box)), next}
