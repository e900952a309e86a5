-- What scripts share. JOBS and SANDBOXES (transition tables), ACCEPTS (sandbox states that accept work), SHARE and DEPTH (limits of a queue), STOPS,
-- ARTIFACT_BYTES and QUOTAS (of tenants without their own) are generated from package farm, and the names of keys from keys.go.

-- A flag is '1' or ''.
local function flag(b) return b and '1' or '' end

-- A quota of the tenant; -1: no bound.
local function quota(name) return tonumber(call('HGET', OWN_QUOTAS, name) or QUOTAS[name]) end

-- Lua's own format loses digits of numbers over 1e14.
local function int(n) return string.format('%.0f', n + 0) end -- without the sign of -0, which Redis refuses

local function final(transitions, state) return next(transitions[state]) == nil end

local function splitEventID(id)
  local seq, n = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(seq), tonumber(n)
end

-- What an event of the window counts beside its JSON.
local EVENT_EXTRA = 32

-- The id of an event behind the last one; nil if it is not newer. The id '' means the one after the last. '<seq>+' means <seq>-0, or the
-- next free <seq> if that is not newer.
local function nextEventID(last, id)
  local seq, n = splitEventID(last)
  if id == '' then return int(seq) .. '-' .. int(n + 1) end
  if string.sub(id, -1) == '+' then
    local want = tonumber(string.sub(id, 1, -2))
    if want <= seq then want = seq + 1 end
    return int(want) .. '-0'
  end
  local s, m = splitEventID(id)
  if s < seq or (s == seq and m <= n) then return nil end
  return id
end

-- Picks from a list of ids and the JSON of events, which alternate, those that are newer than the last event. Returns {id, JSON} of each, and
-- what they count in the window.
local function newerEvents(last, list, from)
  local new, size = {}, 0
  for i = from, #list, 2 do
    local at = nextEventID(last, list[i])
    if at then
      last, size = at, size + #list[i + 1] + EVENT_EXTRA
      table.insert(new, {at, list[i + 1]})
    end
  end
  return new, size
end

-- Adds what newerEvents gave.
local function addEvents(job, new)
  for _, event in ipairs(new) do call('XADD', eventsKey(job), event[1], 'e', event[2]) end
  if #new > 0 then call('HSET', jobKey(job), 'ev', new[#new][1]) end
end

-- Wakes those who watch a job. The message is 'more', or another one if the job has ended.
local function notifyWatchers(job, message) call('PUBLISH', watchChannel(job), message or 'more') end

-- The message of the end of a job: the fields of its record that have changed since it was accepted, as a JSON list of names and values that
-- alternate, so that those who wait need not read it. '1' if that is too long for a message.
local function endMessage(job)
  local names = {'state', 'attempt', 'spared', 'worker', 'queue', 'started', 'finished', 'qms', 'rms', 'ums', 'result', 'error', 'outcome'}
  local list, size = {}, 0
  for i, value in ipairs(call('HMGET', jobKey(job), unpack(names))) do
    if value then
      size = size + #value
      table.insert(list, names[i])
      table.insert(list, value)
    end
  end
  return size <= END_MESSAGE and cjson.encode(list) or '1'
end

local function appendStateEvent(job, id, state)
  id = nextEventID(call('HGET', jobKey(job), 'ev') or '0-0', id)
  if id then
    call('XADD', eventsKey(job), id, 'e', '{"name":"state","state":"' .. state .. '"}')
    call('HSET', jobKey(job), 'ev', id)
  end
  notifyWatchers(job, final(JOBS, state) and endMessage(job))
end

-- Updates the index of deadlines: the earlier of the absolute and the idle deadline, as farm.Sandbox.Deadline computes it.
local function updateDeadline(box)
  local s = call('HMGET', sandboxKey(box), 'state', 'expires', 'used', 'idle')
  if not s[1] or s[1] == 'closing' or final(SANDBOXES, s[1]) then
    call('ZREM', DEADLINES, box)
    return
  end
  local deadline, idle = tonumber(s[2]), tonumber(s[4]) or 0
  if idle > 0 and s[1] ~= 'busy' and s[1] ~= 'hibernated' then
    local idleEnd = tonumber(s[3]) + idle * 1000000
    if idleEnd < deadline then deadline = idleEnd end
  end
  call('ZADD', DEADLINES, int(deadline), box)
end

-- The generation of a sandbox, as text. Records have the field from the second generation on.
local function generationOf(box) return call('HGET', sandboxKey(box), 'gen') or '1' end

local function addUse(sign, mem, mcpu, gpus)
  for name, n in pairs({mem = mem, mcpu = mcpu, gpus = gpus}) do
    if n ~= '0' then call('HINCRBY', USE, name, sign .. n) end
  end
end

-- Counts what a new sandbox has; its record remembers that, so that it is given back once.
local function chargeSandbox(box, mem, mcpu, gpus)
  call('HSET', sandboxKey(box), 'charge', mem .. ' ' .. mcpu .. ' ' .. gpus)
  addUse('', mem, mcpu, gpus)
end

local function refundSandbox(box)
  local mem, mcpu, gpus = string.match(call('HGET', sandboxKey(box), 'charge') or '', '^(%d+) (%d+) (%d+)$')
  if not mem then return end
  call('HDEL', sandboxKey(box), 'charge')
  addUse('-', mem, mcpu, gpus)
end

-- Counts the checkpoint of a sandbox against max_stored_mb; its record remembers that, so that it is given back once.
local function chargeCheckpoint(box, bytes)
  call('HSET', sandboxKey(box), 'frozen', bytes)
  call('HINCRBY', STORED, 'reserved', bytes)
end

local function refundCheckpoint(box)
  local bytes = call('HGET', sandboxKey(box), 'frozen')
  if not bytes then return end
  call('HDEL', sandboxKey(box), 'frozen')
  call('HINCRBY', STORED, 'reserved', '-' .. bytes)
end

-- Bytes that count against max_stored_mb: those of artifacts and ARTIFACT_BYTES for each, what is reserved, and what is kept.
local function storedUsed()
  local s = call('HMGET', STORED, 'bytes', 'reserved', 'kept', 'artifacts')
  return (tonumber(s[1]) or 0) + (tonumber(s[2]) or 0) + (tonumber(s[3]) or 0) + (tonumber(s[4]) or 0) * ARTIFACT_BYTES
end

-- A repair of what is stored goes through the records page by page. WALK has its sums and its places, WALKED the documents that it has counted.
-- What changes behind it changes its sum as well, so that the two agree at its end, whatever happened meanwhile.

-- Sets what counts for an entry of the index of documents. The hash 'kept' remembers it, so that it is given back once.
local function setKept(id, bytes)
  local had = tonumber(call('HGET', KEPT, id)) or 0
  if call('EXISTS', WALK) == 1 then
    local counted = call('SADD', WALKED, id) == 0 and had or 0
    call('HINCRBY', WALK, 'kept', int(bytes - counted))
  end
  if bytes ~= had then call('HINCRBY', STORED, 'kept', int(bytes - had)) end
  if bytes > 0 then call('HSET', KEPT, id, int(bytes)) else call('HDEL', KEPT, id) end
end

-- Counts bytes more (or less, if negative) for an entry of the index of documents.
local function addKept(id, bytes)
  setKept(id, math.max((tonumber(call('HGET', KEPT, id)) or 0) + bytes, 0))
end

-- The refusal of bytes that are more than the tenant may store, or nil. freed: bytes that the same step gives back.
local function storedFull(bytes, freed)
  if bytes <= 0 then return nil end
  local limit, used = quota('max_stored_mb') * 1048576, storedUsed()
  if limit < 0 or used - freed + bytes <= limit then return nil end
  return {'full', int(limit), int(used), int(bytes)}
end

-- By how many bytes reads may exceed max_stored_mb, with their results, which are kept for minutes, and with the files that their callers are
-- reading: who must make room reads first.
local READ_ROOM = 67108864

-- What the jobs and sandboxes of the tenant have in Redis, in bytes: the fields 'unfinished', which has the open sandboxes as well, and 'finished',
-- which has those that have ended. Of each job the strings in its record, its request and its events count, and JOB_EXTRA for its keys and its
-- entries of indexes. ENDED has a member for each finished job, its id and what it counts, by the time at which its record expires; for a
-- sandbox that has ended, 'sbx:' is before the id. Beside them the manifests count, in the field 'manifests' of what is stored: their documents and
-- MANIFEST_EXTRA for each.
local JOB_EXTRA, MANIFEST_EXTRA = 6144, 1024

-- What a sandbox counts in Redis: the strings of its record, its secrets, the list of its packages, EGRESS_ENTRY for each entry of its egress log,
-- and SANDBOX_EXTRA for its keys and its entries of indexes.
local SANDBOX_EXTRA, EGRESS_ENTRY = 2048, 320

local function sizeOfSandbox(box)
  local k = sandboxKey(box)
  local size = SANDBOX_EXTRA + EGRESS_ENTRY * call('XLEN', egressKey(box))
    + call('STRLEN', secretsKey(box)) + (tonumber(call('HGET', k, 'pkgsize')) or 0)
  for _, field in ipairs({'doc', 'name', 'labels', 'hosts', 'reason'}) do size = size + call('HSTRLEN', k, field) end
  return size
end

-- Counts what an open sandbox has in Redis now; its record remembers it, so that it is given back once.
local function chargeRecord(box)
  local k = sandboxKey(box)
  if not call('ZSCORE', OPEN_SANDBOXES, box) then return end -- given back already
  local had, has = tonumber(call('HGET', k, 'size')) or 0, sizeOfSandbox(box)
  call('HSET', k, 'size', int(has))
  call('HINCRBY', MEMORY, 'unfinished', int(has - had))
end

local function refundRecord(box)
  local had = call('HGET', sandboxKey(box), 'size')
  if not had then return end
  call('HDEL', sandboxKey(box), 'size')
  call('HINCRBY', MEMORY, 'unfinished', '-' .. had)
end

-- Counts what stays of a sandbox that has ended, until its record expires at this time (microseconds).
local function chargeEndedRecord(box, expires)
  local k = sandboxKey(box)
  local had, has = call('HGET', k, 'size'), int(sizeOfSandbox(box))
  if had and call('ZREM', ENDED, 'sbx:' .. box .. ' ' .. had) == 1 then call('HINCRBY', MEMORY, 'finished', '-' .. had) end
  call('HSET', k, 'size', has)
  call('HINCRBY', MEMORY, 'finished', has)
  call('ZADD', ENDED, int(expires), 'sbx:' .. box .. ' ' .. has)
end

-- A sandbox that can run nothing more does not count against the quotas.
local function releaseQuotas(box)
  refundSandbox(box)
  refundRecord(box)
  call('ZREM', OPEN_SANDBOXES, box)
end

-- The index of open sandboxes by node: on:<node> has their ids, 'nodes' the nodes with any. The node '' is of sandboxes that are closing
-- without one.
local function indexNode(box, node)
  call('SADD', onNodeKey(node), box)
  call('SADD', NODES, node)
end

local function unindexNode(box, node)
  if call('SREM', onNodeKey(node), box) == 1 and call('EXISTS', onNodeKey(node)) == 0 then call('SREM', NODES, node) end
end

-- Sets the node of a sandbox that is not final; '' for none.
local function setNode(box, node)
  local before = call('HGET', sandboxKey(box), 'node') or ''
  if before ~= node then unindexNode(box, before) end
  call('HSET', sandboxKey(box), 'node', node)
  if node ~= '' then indexNode(box, node) end
end

-- Indexes a sandbox that is closing without a node.
local function indexClosing(box)
  if (call('HGET', sandboxKey(box), 'node') or '') == '' then indexNode(box, '') end
end

-- Has the documents of a record removed after it expires: an hour later, since the clocks of the processes differ, or as much later as it
-- was kept, if that is less.
local function expireDocuments(id, ttl)
  local kept = tonumber(ttl)
  call('ZADD', DOCUMENTS, int(tonumber(NOW) + (kept + math.min(kept, 3600)) * 1000000), id)
end

-- How long the record of a sandbox that has ended is kept. A container without a record that has not reached its deadline means that Redis has
-- lost the record. So the record of a sandbox whose container, or that of an earlier generation, may still run is kept past its deadline,
-- and an hour more: clocks differ. The second result says that its container may still run.
local function keptFor(box, closedTTL, removed)
  local s = call('HMGET', sandboxKey(box), 'expires', 'node')
  if generationOf(box) == '1' and (removed or (s[2] or '') == '') then return closedTTL, false end
  return int(math.max(tonumber(closedTTL), math.ceil(((tonumber(s[1]) or 0) - tonumber(NOW)) / 1000000) + 3600)), true
end

-- Writes a sandbox's new state and what follows from it. The caller has checked the transition. For final states: the times to live (seconds),
-- and whether its container is known to be gone.
local function setSandboxState(box, state, closedTTL, retention, removed)
  local k = sandboxKey(box)
  call('HSET', k, 'state', state)
  if state == 'ready' then call('HSETNX', k, 'ready', NOW) end
  if state == 'closing' then indexClosing(box) end
  if final(SANDBOXES, state) then
    call('HSET', k, 'closed', NOW)
    releaseQuotas(box)
    refundCheckpoint(box)
    unindexNode(box, call('HGET', k, 'node') or '')
    local needed
    closedTTL, needed = keptFor(box, closedTTL, removed)
    if needed then call('HSET', k, 'needed', '1') end -- so that it is not removed before
    call('EXPIRE', k, closedTTL)
    call('EXPIRE', jobsOfKey(box), retention)
    call('EXPIRE', packagesKey(box), closedTTL)
    call('EXPIRE', egressKey(box), closedTTL)
    call('EXPIRE', stopsKey(box), closedTTL)
    call('DEL', secretsKey(box))
    chargeEndedRecord(box, tonumber(NOW) + tonumber(closedTTL) * 1000000)
    if call('ZSCORE', DOCUMENTS, box) then expireDocuments(box, closedTTL) end
  end
  updateDeadline(box)
end

-- Removes a job from its sandbox's FIFO. Returns the new head if the job was the head, else ''.
local function leaveFIFO(box, job)
  local fifo = fifoKey(box)
  if call('LINDEX', fifo, 0) ~= job then
    call('LREM', fifo, 1, job)
    return ''
  end
  call('LPOP', fifo)
  return call('LINDEX', fifo, 0) or ''
end

-- Makes a busy sandbox ready again. touch: this was a use of it.
local function freeSandbox(box, touch)
  local k = sandboxKey(box)
  if call('HGET', k, 'state') ~= 'busy' then return end
  call('HSET', k, 'state', 'ready')
  if touch then call('HSET', k, 'used', NOW) end
  updateDeadline(box)
end

-- Counts bytes of an unfinished job; its record remembers them, so that they are given back once.
local function chargeJob(id, bytes)
  call('HINCRBY', jobKey(id), 'size', int(bytes))
  call('HINCRBY', MEMORY, 'unfinished', int(bytes))
end

-- Gives back what a finished job counts, once.
local function refundJob(member)
  if call('ZREM', ENDED, member) == 0 then return end
  call('HINCRBY', MEMORY, 'finished', '-' .. string.match(member, ' (%d+)$'))
end

-- Gives back what expired records counted. Returns of how many.
local function refundExpired(most)
  local found = call('ZRANGEBYSCORE', ENDED, '-inf', NOW, 'LIMIT', 0, most)
  for _, member in ipairs(found) do refundJob(member) end
  return #found
end

-- Counts what stays of a job that has ended, in place of what it was charged before. Two expired ones are given back, so that the index stays
-- bounded.
local function chargeEnded(id, charged, kept, ttl)
  if charged then call('HINCRBY', MEMORY, 'unfinished', '-' .. charged) end
  call('HINCRBY', MEMORY, 'finished', int(kept))
  call('HSET', jobKey(id), 'size', int(kept))
  call('ZADD', ENDED, int(tonumber(NOW) + tonumber(ttl) * 1000000), id .. ' ' .. int(kept))
  refundExpired(2)
end

-- The Redis key of a job's idempotency key; nil if it has none, or if that was used again and names another job.
local function idempotencyOf(id)
  local sum = call('HGET', jobKey(id), 'idem')
  local k = sum and idempotencyKey(sum)
  return k and call('HGET', k, 'job') == id and k or nil
end

-- Removes a finished job before its record expires. Its artifacts stay.
local function removeJob(id)
  local j, idempotency = call('HMGET', jobKey(id), 'sandbox', 'size'), idempotencyOf(id)
  if idempotency then call('DEL', idempotency) end
  call('DEL', jobKey(id), eventsKey(id), requestKey(id), segmentsKey(id))
  call('ZADD', DOCUMENTS, 'XX', NOW, id)
  call('ZREM', JOB_LIST, id)
  if j[1] then call('ZREM', jobsOfKey(j[1]), id) end
  if j[2] then refundJob(id .. ' ' .. j[2]) end
end

-- Removes a sandbox that has ended before its record expires. Its jobs and artifacts stay.
local function removeSandbox(box)
  call('DEL', sandboxKey(box), packagesKey(box), egressKey(box))
  call('ZADD', DOCUMENTS, 'XX', NOW, box)
  call('ZREM', SANDBOX_LIST, box)
end

-- Removes the oldest two entries of an index if their records have expired. Called for each new entry, this keeps the index bounded.
local function trimIndex(index, keyOf)
  for _, id in ipairs(call('ZRANGE', index, 0, 1)) do
    if call('EXISTS', keyOf(id)) == 0 then call('ZREM', index, id) end
  end
end

-- The queue of a job that no worker has started: its own, that of its sandbox's node, or cpu while no node is chosen. Any worker can end a
-- sandbox without a node, even on a full node: control.
local function queueOf(queue, inline, box)
  if queue ~= '' then return queue end
  local node = call('HGET', sandboxKey(box), 'node')
  if node and node ~= '' then return 'node-' .. node end
  return inline and 'control' or 'cpu'
end

-- The queue share of a job: that of its queue, or if it is inline, that of its kind in its queue. A close has none, so it is never parked.
local function shareOf(kind, queue, inline, box)
  if kind == 'close' then return nil end
  queue = queueOf(queue, inline, box)
  return inline and queue .. '/' .. kind or queue
end

-- Jobs that end or stop something are not refused for a quota or a limit of a queue.
local function urgent(kind) return kind == 'close' or kind == 'interrupt' or kind == 'restart' end

-- Whether one more job may run, or this one counts already.
local function mayRun(id)
  local most = quota('max_running')
  return most < 0 or call('SCARD', ACTIVE) < most or call('SISMEMBER', ACTIVE, id) == 1
end

-- Gives a runnable job a slot of its queue share, or parks it. Of each share a tenant has at most SHARE jobs in a queue that no worker has claimed,
-- or if they are inline, that have not ended, since no quota bounds how many of those run. Of others it has at most max_running with a slot or a worker.
-- Returns whether a task must be in the queue.
local function takeQueueSlot(id)
  local j = call('HMGET', jobKey(id), 'kind', 'queue', 'inline', 'sandbox', 'created', 'aq')
  if j[1] == 'close' then return true end
  local q = j[6]
  if q then
    if call('ZSCORE', slotsKey(q), id) then return true end
  else
    q = shareOf(j[1], j[2], j[3] == '1', j[4])
    call('HSET', jobKey(id), 'aq', q, 'aqt', NOW)
  end
  local inline = j[3] == '1'
  if call('ZCARD', slotsKey(q)) < SHARE and (inline or mayRun(id)) then
    call('ZREM', parkedKey(q), id)
    call('ZADD', slotsKey(q), j[5], id)
    if not inline then call('SADD', ACTIVE, id) end
    return true
  end
  call('ZADD', parkedKey(q), j[5], id)
  call('SADD', PARKED_SHARES, q)
  return false
end

-- How long a worker may have a task, in seconds. TASK_SLACK: for staging, start, upload and grace periods, beside the job's own timeout.
-- TASK_ENDLESS: of jobs without a timeout; longer than a day, the maximum that a caller can set.
local TASK_SLACK, TASK_ENDLESS = 600, 90000

-- Puts the task of a runnable job into its queue. Each attempt has a task of its own, since that of the attempt before may still be in the
-- queue. more: how many further tasks there may be, each only while those before it are active. Returns nil if a task was added, else the state
-- of the last one that is there: 'active' if a server has it, '' if there is none, since the job's sandbox has ended: the sweep ends the job.
local function enqueue(id, more)
  local j = call('HMGET', jobKey(id), 'state', 'attempt', 'sandbox', 'queue', 'inline', 'timeout', 'bg')
  local box = call('HMGET', sandboxKey(j[3]), 'state', 'node')
  if box[1] and final(SANDBOXES, box[1]) then return '' end
  local q, timeout = queueOf(j[4], j[5] == '1', j[3]), tonumber(j[6])
  if j[1] == 'running' and box[2] and box[2] ~= '' then q = 'node-' .. box[2] end -- only that engine has the container
  timeout = (timeout > 0 and j[7] ~= '1') and timeout + TASK_SLACK or TASK_ENDLESS
  local task, tenant = j[2] == '0' and id or id .. '.' .. j[2], string.match(P, '{(.*)}:$')
  local found = enqueueTask(q, task, tenant, id, timeout, NOW)
  for n = 1, more or 0 do
    if found ~= 'active' then break end
    found = enqueueTask(q, task .. '.again' .. n, tenant, id, timeout, NOW)
  end
  return found
end

-- Enqueues a job that has become runnable, or parks it. Returns whether it is enqueued.
local function makeReady(id)
  if not takeQueueSlot(id) then return false end
  enqueue(id)
  return true
end

-- Keeps the slot of an inline job that a worker has claimed. If it was parked, it gets one more than there are.
local function keepQueueSlot(id)
  local j = call('HMGET', jobKey(id), 'aq', 'created')
  if j[1] and call('ZREM', parkedKey(j[1]), id) == 1 then call('ZADD', slotsKey(j[1]), j[2], id) end
end

-- Frees the queue slot of a job that no longer needs it. Returns whether a parked job got it.
local function freeQueueSlot(id)
  local q = call('HGET', jobKey(id), 'aq')
  if not q then return false end
  call('HDEL', jobKey(id), 'aq', 'aqt')
  call('ZREM', parkedKey(q), id)
  if call('ZREM', slotsKey(q), id) == 0 then return false end
  local first = call('ZRANGE', parkedKey(q), 0, 0)[1]
  return first and makeReady(first)
end

-- Gives the oldest job that max_running has parked a slot.
local function unparkOldest()
  local oldest, since = nil, nil
  for _, q in ipairs(call('SMEMBERS', PARKED_SHARES)) do
    local first = call('ZRANGE', parkedKey(q), 0, 0, 'WITHSCORES')
    if first[1] and (not since or tonumber(first[2]) < since) and call('ZCARD', slotsKey(q)) < SHARE then
      oldest, since = first[1], tonumber(first[2])
    end
  end
  if oldest then makeReady(oldest) end
end

-- What the dispatcher must know of a job, as names and values that alternate; nil if there is no such job.
local function route(id)
  local j = call('HMGET', jobKey(id), 'state', 'attempt', 'worker', 'kind', 'inline', 'created', 'queue', 'timeout',
    'bg', 'sandbox', 'left', 'spared', 'aq')
  if not j[1] then return nil end
  local box = call('HMGET', sandboxKey(j[10]), 'node', 'state')
  return {
    'id', id, 'state', j[1], 'attempt', j[2], 'worker', j[3] or '', 'kind', j[4], 'inline', j[5], 'created', j[6], 'queue', j[7],
    'timeout', j[8], 'background', j[9], 'sandbox', j[10], 'outside_fifo', j[11] or '', 'uncounted', j[12] or '0',
    'node', box[1] or '', 'sandbox_state', box[2] or '', 'head', flag(call('LINDEX', fifoKey(j[10]), 0) == id),
    'parked', flag(j[13] and call('ZSCORE', parkedKey(j[13]), id)),
  }
end
