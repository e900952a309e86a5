-- What scripts share that change sandboxes.

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

-- What a sandbox counts in Redis: the strings of its record, its secrets, the list of its packages, each entry of its egress log with
-- EGRESS_EXTRA, and SANDBOX_EXTRA for its keys and its entries of indexes.
local SANDBOX_EXTRA, EGRESS_EXTRA = 2048, 64

-- What entries of an egress log count, as XRANGE returns them.
local function sizeOfEntries(entries)
  local size = 0
  for _, entry in ipairs(entries) do size = size + #entry[2][2] + EGRESS_EXTRA end
  return size
end

-- What the egress log of a sandbox counts. Its record remembers it, but for logs that an earlier release wrote.
local function sizeOfLog(box)
  return tonumber(call('HGET', sandboxKey(box), 'logged')) or sizeOfEntries(call('XRANGE', egressKey(box), '-', '+'))
end

local function sizeOfSandbox(box)
  local k = sandboxKey(box)
  local size = SANDBOX_EXTRA + sizeOfLog(box)
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
  local s, has = call('HMGET', k, 'size', 'needed'), int(sizeOfSandbox(box))
  if s[1] then refundJob('sbx:' .. box .. ' ' .. s[1]) end
  call('HSET', k, 'size', has)
  call('HINCRBY', MEMORY, s[2] and 'unfinished' or 'finished', has)
  call('ZADD', s[2] and NEEDED or ENDED, int(expires), 'sbx:' .. box .. ' ' .. has)
end

-- A sandbox that can run nothing more is not open. Its memory, cores and GPUs count until it has ended, with its container.
local function closeRecord(box)
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

-- How long the record of a sandbox that has ended is kept. A container without a record that has not reached its deadline means that Redis has
-- lost the record. So the record of a sandbox whose container, or that of an earlier generation, may still run is kept past its deadline,
-- and an hour more: clocks differ. The second result says that its container may still run.
local function keptFor(box, closedTTL, removed)
  local s = call('HMGET', sandboxKey(box), 'expires', 'node')
  if generationOf(box) == '1' and (removed or (s[2] or '') == '') then return closedTTL, false end
  return int(math.max(tonumber(closedTTL), math.ceil(((tonumber(s[1]) or 0) - tonumber(NOW)) / 1000000) + 3600)), true
end

-- Has the keys of a sandbox that has ended expire, and counts them until then. Times to live are in seconds; removed: its container is known to be gone.
local function keepEnded(box, closedTTL, retention, removed)
  local k, needed = sandboxKey(box), nil
  closedTTL, needed = keptFor(box, closedTTL, removed)
  if needed then call('HSET', k, 'needed', '1') else call('HDEL', k, 'needed') end -- '1': it is not removed before
  call('EXPIRE', k, closedTTL)
  call('EXPIRE', jobsOfKey(box), retention)
  call('EXPIRE', packagesKey(box), closedTTL)
  call('EXPIRE', egressKey(box), closedTTL)
  call('EXPIRE', stopsKey(box), closedTTL)
  chargeEndedRecord(box, tonumber(NOW) + tonumber(closedTTL) * 1000000)
  if call('ZSCORE', DOCUMENTS, box) then expireDocuments(box, closedTTL) end
end

-- Writes a sandbox's new state and what follows from it. The caller has checked the transition. For final states: what keepEnded needs.
local function setSandboxState(box, state, closedTTL, retention, removed)
  local k = sandboxKey(box)
  call('HSET', k, 'state', state)
  if state == 'ready' then call('HSETNX', k, 'ready', NOW) end
  if state == 'closing' then indexClosing(box) end
  if final(SANDBOXES, state) then
    call('HSET', k, 'closed', NOW)
    closeRecord(box)
    refundSandbox(box)
    refundCheckpoint(box)
    unindexNode(box, call('HGET', k, 'node') or '')
    call('DEL', secretsKey(box))
    keepEnded(box, closedTTL, retention, removed)
  end
  updateDeadline(box)
end

-- Makes a busy sandbox ready again. touch: this was a use of it.
local function freeSandbox(box, touch)
  local k = sandboxKey(box)
  if call('HGET', k, 'state') ~= 'busy' then return end
  call('HSET', k, 'state', 'ready')
  if touch then call('HSET', k, 'used', NOW) end
  updateDeadline(box)
end

-- Removes a sandbox that has ended before its record expires. Its jobs and artifacts stay.
local function removeSandbox(box)
  call('DEL', sandboxKey(box), packagesKey(box), egressKey(box))
  call('ZADD', DOCUMENTS, 'XX', NOW, box)
  call('ZREM', SANDBOX_LIST, box)
end
