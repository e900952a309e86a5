-- Sends a create to another queue, and its sandbox, which is not ready, to no node yet: what the attempts so far made of it is void.
-- ARGV: id, attempt (0: it must be queued), queue.
local id, attempt, queue = ARGV[3], ARGV[4], ARGV[5]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'aq', 'created')
if not j[1] then return {'notfound'} end
if attempt == '0' then
  if j[1] ~= 'queued' then return {'fenced'} end
elseif j[1] ~= 'running' or j[2] ~= attempt then
  return {'fenced'}
end
local box = key('sbx', j[3])
local state = call('HGET', box, 'state') or ''
if state == 'starting' then
  setBox(j[3], 'queued', 0, 0)
elseif state ~= 'queued' then
  return {'state', state}
end
call('HSET', k, 'queue', queue)
call('HSET', box, 'node', '', 'container', '', 'void', j[2])
if j[4] and j[4] ~= queue then -- it has had its turn, so it is not held again
  call('ZREM', key('out', j[4]), id)
  call('ZREM', key('held', j[4]), id)
  call('HSET', k, 'aq', queue)
  call('ZADD', key('out', queue), j[5], id)
end
return {'ok'}
