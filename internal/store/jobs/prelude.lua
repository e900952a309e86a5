-- What scripts share that change jobs.

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

-- Removes a job from its sandbox's FIFO. Returns the new head if the job was the head, else ''.
local function leaveFIFO(box, job)
  local fifo = fifoKey(box)
  if call('LINDEX', fifo, 0) ~= job then
    call('LREM', fifo, -1, job) -- from the tail: who cancels many begins there
    return ''
  end
  call('LPOP', fifo)
  return call('LINDEX', fifo, 0) or ''
end

-- Counts bytes of an unfinished job; its record remembers them, so that they are given back once.
local function chargeJob(id, bytes)
  call('HINCRBY', jobKey(id), 'size', int(bytes))
  call('HINCRBY', MEMORY, 'unfinished', int(bytes))
end

-- Counts what stays of a job that has ended, in place of what it was charged before. Two expired ones are given back, so that the index stays
-- bounded.
local function chargeEnded(id, charged, kept, ttl)
  if charged then call('HINCRBY', MEMORY, 'unfinished', '-' .. charged) end
  call('HINCRBY', MEMORY, 'finished', int(kept))
  call('HSET', jobKey(id), 'size', int(kept))
  call('ZADD', ENDED, int(tonumber(NOW) + tonumber(ttl) * 1000000), id .. ' ' .. int(kept))
  refundExpired(ENDED, 2)
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
  local j = call('HMGET', jobKey(id), 'state', 'attempt', 'sandbox', 'queue', 'inline', 'timeout', 'bg', 'kind')
  local box = call('HMGET', sandboxKey(j[3]), 'state', 'node')
  if box[1] and final(SANDBOXES, box[1]) then return '' end
  local q, timeout = queueOf(j[4], j[5] == '1', j[3]), tonumber(j[6])
  if j[1] == 'running' and box[2] and box[2] ~= '' then q = 'node-' .. box[2] end -- only that engine has the container
  timeout = (timeout > 0 and j[7] ~= '1') and timeout + TASK_SLACK or TASK_ENDLESS
  local task, tenant = j[2] == '0' and id or id .. '.' .. j[2], string.match(P, '{(.*)}:$')
  local aside = j[5] == '1' or j[8] == 'close' or j[8] == 'hibernate' -- it does not wait for jobs that may run for long
  local found = enqueueTask(q, task, tenant, id, timeout, NOW, aside)
  for n = 1, more or 0 do
    if found ~= 'active' then break end
    found = enqueueTask(q, task .. '.again' .. n, tenant, id, timeout, NOW, aside)
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
