-- Ends a job. Modes: finish (by its runner, fenced), force (whichever worker runs it), cancel (at once if queued, by a flag if running).
-- Replies {'ok', what follows as names and values, job (cancel only)}, {'fenced'}, {'state', state}, {'notfound'}, or {'full', the quota, what is
-- used, what is needed} in bytes, if the tenant's storage has no room for the document of the result.
local STRAYS_KEPT = 600 -- seconds
local id, mode, to = arg.id, arg.mode, arg.state
local k = jobKey(id)
local j = call('HMGET', k, 'state', 'attempt', 'kind', 'sandbox', 'inline', 'hidden', 'cb', 'left', 'token', 'docs', 'reserved', 'win', 'size',
  'reqsize', 'aq')
local state, attempt, kind, box, callback, reserved = j[1], j[2], j[3], j[4], j[7], j[11]
local inline, hidden, outsideFIFO = j[5] == '1', j[6] == '1', j[8] == '1'
if not state then return {'notfound'} end

-- callback: '1' if one is due. sandbox: the sandbox that ended with its creation. request: '1' if the request is a document, which is not
-- needed any more.
local function answer(follows)
  local out = {}
  for name, value in pairs(follows) do
    table.insert(out, name)
    table.insert(out, value)
  end
  return {'ok', out, mode == 'cancel' and call('HGETALL', k) or {}}
end

if mode == 'finish' then
  if j[9] == arg.token then return answer({callback = callback}) end -- a retry of a call whose answer was lost: the first one did all
  if final(JOBS, state) or attempt ~= arg.attempt then return {'fenced'} end
elseif final(JOBS, state) then
  return answer({})
elseif mode == 'cancel' and state == 'running' then
  call('HSET', k, 'cancel', '1')
  call('PUBLISH', CANCELS, arg.hint)
  return answer({})
end
if not JOBS[state][to] or mode ~= 'force' and state == 'queued' and to == 'completed' then return {'state', state} end

local requestSize = tonumber(j[14]) or 0 -- of a request that is a document, which is removed now
local stored = tonumber(arg.stored)
-- Bytes that it has reserved for artifacts and not recorded. If it has not completed, some may be in the object store: they count until Trim has
-- removed them, some time after the last worker that may write them has noticed the end.
local unrecorded = tonumber(reserved) or 0
local strays = to ~= 'completed' and unrecorded or 0
local full = storedFull(stored, unrecorded - strays + requestSize + (hidden and READ_ROOM or 0))
if full then return full end

if state == 'queued' and j[15] and call('ZSCORE', slotsKey(j[15]), id) then call('PUBLISH', CANCELS, arg.hint) end -- a worker may wait with its task
local counted = call('SREM', ACTIVE, id) == 1
if not freeQueueSlot(id) and counted and quota('max_running') >= 0 then unparkOldest() end
call('HSET', k, 'state', to, 'finished', NOW, 'token', arg.token)
if mode == 'force' then call('HINCRBY', k, 'attempt', 1) end
if arg.result ~= '' then call('HSET', k, 'result', arg.result) end
if arg.error ~= '' then call('HSET', k, 'error', arg.error) end
if arg.outcome ~= '' then call('HSET', k, 'outcome', arg.outcome) end
if arg.run_ms ~= '' then call('HSET', k, 'rms', arg.run_ms, 'ums', arg.upload_ms) end
local kept = JOB_EXTRA + call('HSTRLEN', k, 'doc') + call('HSTRLEN', k, 'shown') + #arg.result + #arg.error + tonumber(j[12] or 0)
if arg.events ~= '[]' then
  local new, bytes = newerEvents(call('HGET', k, 'ev') or '0-0', cjson.decode(arg.events), 1)
  addEvents(id, new)
  kept = kept + bytes
end
appendStateEvent(id, int(tonumber(arg.last_event) + 1) .. '+', to)

if reserved then
  call('HINCRBY', STORED, 'reserved', int(-unrecorded))
  call('HDEL', k, 'reserved')
end
if strays > 0 then
  local entry = 'artifacts/' .. box .. '/' .. id
  setKept(entry, strays)
  call('ZADD', DOCUMENTS, int(tonumber(NOW) + STRAYS_KEPT * 1000000), entry)
end
call('ZREM', OPEN_JOBS, id)
call('ZREM', unfinishedKey(box), id)
call('HDEL', stopsKey(box), id)
call('DEL', checkpointKey(id), requestKey(id))
local ttl = hidden and arg.hidden_ttl or arg.retention
chargeEnded(id, j[13], kept, ttl)
call('EXPIRE', k, ttl)
call('EXPIRE', eventsKey(id), ttl)
local idempotency = idempotencyOf(id)
if idempotency and call('TTL', idempotency) > tonumber(ttl) then call('EXPIRE', idempotency, ttl) end
if j[12] then call('HDEL', k, 'win') end
if j[10] or arg.spilled == '1' then
  call('EXPIRE', segmentsKey(id), ttl)
  expireDocuments(id, ttl)
end
if stored ~= requestSize then addKept(id, stored - requestSize) end
if requestSize > 0 then call('HDEL', k, 'reqsize') end
if call('ZSCORE', DOCUMENTS, 'staging/' .. id) == 'inf' then call('ZADD', DOCUMENTS, NOW, 'staging/' .. id) end
if callback == '1' then call('ZADD', CALLBACKS, NOW, id) end

local head = ''
if not inline and not outsideFIFO then
  local first = call('LINDEX', fifoKey(box), 0) == id
  head = leaveFIFO(box, id)
  if first and state == 'running' then freeSandbox(box, true) end
end

-- The sandbox of a run only waits for its end.
if kind == 'run' and call('HGET', sandboxKey(box), 'state') == 'closing' then closeRecord(box) end

-- A sandbox whose creation did not succeed ends with it.
local ended = ''
if to ~= 'completed' and (kind == 'create' or kind == 'run') then
  local s = call('HGET', sandboxKey(box), 'state')
  local after = nil
  if s == 'queued' and to == 'canceled' then -- if it has a node, a member of the pool is its: it counts until that node has removed it
    after = (call('HGET', sandboxKey(box), 'node') or '') == '' and 'closed' or 'closing'
  elseif s == 'queued' then
    after = 'failed'
  elseif s == 'starting' and mode == 'force' then
    after = 'lost'
  end
  if after and SANDBOXES[s][after] then
    if arg.reason ~= '' then call('HSET', sandboxKey(box), 'reason', arg.reason) end
    setSandboxState(box, after, arg.closed_ttl, arg.retention)
    ended = box
  end
end
if head ~= '' then makeReady(head) end
return answer({callback = callback, sandbox = ended, request = flag(j[10] == 'r')})
