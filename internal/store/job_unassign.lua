-- Takes a create away from its node: it goes to another queue, its sandbox, which is not ready, has no node, and everything that its
-- attempts made so far is void. ARGV: id, attempt (0: the job must be queued), queue.
-- Replies {'ok'}, {'fenced'}, {'notfound'}, {'state', state of the sandbox}.
local id, attempt, queue = ARGV[3], ARGV[4], ARGV[5]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'aq', 'created')
local slotQueue = j[4]
if not j[1] then return {'notfound'} end
if attempt == '0' then
  if j[1] ~= 'queued' then return {'fenced'} end
elseif j[1] ~= 'running' or j[2] ~= attempt then
  return {'fenced'}
end
local box = key('sbx', j[3])
local state = call('HGET', box, 'state') or ''
if state == 'starting' then
  setSandboxState(j[3], 'queued')
elseif state ~= 'queued' then
  return {'state', state}
end
call('HSET', k, 'queue', queue)
setNode(j[3], '')
call('HSET', box, 'container', '', 'void', j[2])
if slotQueue and slotQueue ~= queue then -- it keeps a slot even if that is one too many: it has waited for one before
  call('ZREM', slotsKey(slotQueue), id)
  call('ZREM', parkedKey(slotQueue), id)
  call('HSET', k, 'aq', queue)
  call('ZADD', slotsKey(queue), j[5], id)
  call('SADD', ACTIVE, id)
end
return {'ok'}
