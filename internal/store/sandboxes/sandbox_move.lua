-- Moves a sandbox to another state ('': leaves the state) and sets what is not empty. The sandbox must have this generation ('0': any), and
-- a job that is named must run under this attempt. It may repeat its move, since the answer may have been lost. Of one that has ended, without a new
-- state, only removed is noted: its record need not be kept for its container.
-- Replies {'ok', sandbox}, {'notfound'}, {'fenced'}, {'state', state}, or {'full', free bytes} if the checkpoint of a sandbox that hibernates does
-- not fit into the tenant's storage.
local to = arg.state
local k = sandboxKey(arg.id)
local state = call('HGET', k, 'state')
if not state then return {'notfound'} end
if arg.generation ~= '0' and arg.generation ~= generationOf(arg.id) then return {'fenced'} end
if arg.job ~= '' then
  local j = call('HMGET', jobKey(arg.job), 'state', 'attempt')
  if j[1] ~= 'running' or j[2] ~= arg.attempt then return {'fenced'} end
end
if arg.job ~= '' and state == to and not SANDBOXES[state][to] then return {'ok', call('HGETALL', k)} end
if to == '' and final(SANDBOXES, state) and arg.removed == '1' then
  if call('HGET', k, 'needed') then keepEnded(arg.id, arg.closed_ttl, arg.retention, true) end
  return {'ok', call('HGETALL', k)}
end
if to == '' and final(SANDBOXES, state) or to ~= '' and not SANDBOXES[state][to] then return {'state', state} end
if to == 'hibernated' and arg.checkpoint ~= '0' then
  local limit = quota('max_stored_mb')
  local free = limit * 1048576 - storedUsed()
  if limit >= 0 and tonumber(arg.checkpoint) > free then return {'full', int(math.max(free, 0))} end
  chargeCheckpoint(arg.id, arg.checkpoint)
end
if state == 'hibernated' and to ~= '' then
  refundCheckpoint(arg.id)
  call('HSET', k, 'sample', '- 0 0 ' .. NOW) -- its counters begin anew, and meanwhile it used nothing
end
if arg.node ~= '' then setNode(arg.id, arg.node) end
if arg.reason ~= '' then call('HSET', k, 'reason', arg.reason) end
if arg.container ~= '' then call('HSET', k, 'container', arg.container) end
if arg.runtime ~= '' then call('HSET', k, 'runtime', arg.runtime) end
if arg.expired == '1' then call('HSET', k, 'expired', '1') end
if arg.touch == '1' then call('HSET', k, 'used', NOW) end
setSandboxState(arg.id, to ~= '' and to or state, arg.closed_ttl, arg.retention, arg.removed == '1')
return {'ok', call('HGETALL', k)}
