-- Gives a job back: to its queue, where a worker starts it anew, or (begun) to any worker of its node, since its execution continues in its
-- sandbox. The attempt stays, since it is the fence. With elsewhere the sandbox, which is not ready, leaves its node in the same step, its
-- next generation begins, and a job of the node's queue goes to that of all nodes. A call may be repeated: its answer may have been lost.
-- Replies {'ok'}, {'fenced'}, {'notfound'}, {'state', state of the sandbox}, or {'canceled'} if a cancel was requested: then the job
-- keeps running, and must be ended.
local id = arg.id
local k = jobKey(id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'inline', 'left', 'cancel', 'kind', 'queue', 'created', 'worker', 'aq')
local state, box, inline, outsideFIFO, held = j[1], j[3], j[4] == '1', j[5] == '1', j[11]
if not state then return {'notfound'} end
local running = state == 'running'
if j[2] ~= arg.attempt or not running and (state ~= 'queued' or arg.begun == '1') then return {'fenced'} end

if arg.begun == '1' then
  if j[10] ~= arg.no_worker then
    if arg.crashed ~= '1' then call('HINCRBY', k, 'spared', 1) end
    call('HSET', k, 'worker', arg.no_worker)
  end
  enqueue(id)
  return {'ok'}
end

if arg.elsewhere == '1' then
  local s = call('HMGET', sandboxKey(box), 'state', 'node')
  if s[1] == 'starting' then
    setSandboxState(box, 'queued')
  elseif s[1] ~= 'queued' then
    return {'state', s[1] or ''}
  end
  if s[1] == 'starting' or (s[2] or '') ~= '' then
    setNode(box, '')
    call('HSET', sandboxKey(box), 'container', '', 'runtime', '', 'gen', int(tonumber(generationOf(box)) + 1))
  end
end

if running then
  if j[6] == '1' then return {'canceled'} end
  call('HSET', k, 'state', 'queued')
  call('HDEL', k, 'worker', 'started', 'qms')
  if arg.crashed ~= '1' then call('HINCRBY', k, 'spared', 1) end
  appendStateEvent(id, '', 'queued')
  call('XTRIM', eventsKey(id), 'MAXLEN', 500) -- a job may be requeued for days
  if not inline and not outsideFIFO then freeSandbox(box, false) end
end

local own = j[8]
if arg.elsewhere == '1' and string.sub(own, 1, 5) == 'node-' then
  own = 'cpu'
  call('HSET', k, 'queue', own)
end
local share = shareOf(j[7], own, inline, box)
if share and (running or held and held ~= share) then
  -- It keeps a slot even if that is one too many: it has waited for one before.
  if held and held ~= share then freeQueueSlot(id) end
  call('ZREM', parkedKey(share), id)
  call('HSET', k, 'aq', share)
  call('ZADD', slotsKey(share), j[9], id)
  if not inline then call('SADD', ACTIVE, id) end
end
enqueue(id)
return {'ok'}
