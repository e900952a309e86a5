-- Sends a create to another queue, and its sandbox to no node yet. ARGV: id, attempt (0: it must be queued), queue.
local id, attempt, queue = ARGV[3], ARGV[4], ARGV[5]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'aq', 'created')
if not j[1] then return {'notfound'} end
if attempt == '0' then
  if j[1] ~= 'queued' then return {'fenced'} end
elseif j[1] ~= 'running' or j[2] ~= attempt then
  return {'fenced'}
end
call('HSET', k, 'queue', queue)
call('HSET', key('sbx', j[3]), 'node', '', 'container', '')
if j[4] and j[4] ~= queue then -- it has had its turn, so it is not held again
  call('ZREM', key('out', j[4]), id)
  call('ZREM', key('held', j[4]), id)
  call('HSET', k, 'aq', queue)
  call('ZADD', key('out', queue), j[5], id)
end
return {'ok'}
