-- Writes the record of a sandbox whose container outlived it. A record of an earlier generation takes over the container, unless it is closing
-- or final. Replies {'ok'}, or {'exists'} if there is another record.
local k = sandboxKey(arg.id)

-- What was counted for a checkpoint may be of an earlier generation. It exists: it is charged, not refused.
local function countCheckpoint()
  refundCheckpoint(arg.id)
  if arg.checkpoint ~= '0' then chargeCheckpoint(arg.id, arg.checkpoint) end
end

local state = call('HGET', k, 'state')
if state then
  local later = tonumber(arg.generation) > tonumber(generationOf(arg.id))
  if not later or state == 'closing' or final(SANDBOXES, state) then return {'exists'} end
  call('HSET', k, 'container', arg.container, 'runtime', arg.runtime, 'gen', arg.generation)
  setNode(arg.id, arg.node)
  if state ~= 'busy' then
    setSandboxState(arg.id, arg.state)
    countCheckpoint()
  end
  return {'ok'}
end
local seq = call('INCR', SEQUENCE)
call('HSET', k, 'doc', arg.doc, 'state', arg.state, 'ready', NOW, 'used', arg.used, 'expires', arg.expires, 'idle', arg.idle,
  'container', arg.container, 'runtime', arg.runtime, 'gen', arg.generation, 'seq', seq)
setNode(arg.id, arg.node)
call('ZADD', SANDBOX_LIST, seq, arg.id)
call('ZADD', OPEN_SANDBOXES, seq, arg.id)
chargeSandbox(arg.id, arg.memory, arg.millicores, arg.gpus)
countCheckpoint()
if arg.stored ~= '0' then
  call('ZADD', DOCUMENTS, 'inf', arg.id)
  setKept(arg.id, tonumber(arg.stored)) -- the sandbox exists: it is charged, not refused
end
chargeRecord(arg.id)
updateDeadline(arg.id)
return {'ok'}
