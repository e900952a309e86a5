-- Shared by every script on a tenant's records. KEYS[1] is the tenant's prefix "sf:{tenant}:", ARGV[1] the farm's
-- prefix, ARGV[2] now in microseconds. JOBS, BOXES (transition tables) and ACCEPTS stand above, made from package farm.
local P, G, NOW = KEYS[1], ARGV[1], ARGV[2]
local call = redis.call

local function key(kind, id) return P .. kind .. ':' .. id end

-- Numbers over 1e14 would lose digits in Lua's own format.
local function int(n) return string.format('%.0f', n) end

local function final(moves, state) return next(moves[state]) == nil end

local function split(id)
  local seq, n = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(seq), tonumber(n)
end

-- Appends an event. An id that is not newer than the last is left out; '' means the one after the last, and a time
-- with '+' means that one, or a later one where it is not newer. Returns whether something was appended.
local function event(job, id, data)
  local last = call('HGET', key('job', job), 'ev') or '0-0'
  local seq, n = split(last)
  if id == '' then
    id = int(seq) .. '-' .. int(n + 1)
  elseif string.sub(id, -1) == '+' then
    local want = tonumber(string.sub(id, 1, -2))
    if want <= seq then want = seq + 1 end
    id = int(want) .. '-0'
  else
    local s, m = split(id)
    if s < seq or (s == seq and m <= n) then return false end
  end
  call('XADD', key('ev', job), id, 'e', data)
  call('HSET', key('job', job), 'ev', id)
  return true
end

local function stateEvent(job, id, state)
  event(job, id, '{"name":"state","state":"' .. state .. '"}')
  call('PUBLISH', G .. 'w:' .. job, '1')
end

-- Keeps the index of deadlines: the earlier of the absolute and the idle end, as farm.Sandbox.Deadline has it.
local function due(box)
  local s = call('HMGET', key('sbx', box), 'state', 'expires', 'used', 'idle')
  if not s[1] or s[1] == 'closing' or final(BOXES, s[1]) then
    call('ZREM', P .. 'due', box)
    return
  end
  local deadline, idle = tonumber(s[2]), tonumber(s[4]) or 0
  if idle > 0 and s[1] ~= 'busy' then
    local idleEnd = tonumber(s[3]) + idle * 1000000
    if idleEnd < deadline then deadline = idleEnd end
  end
  call('ZADD', P .. 'due', int(deadline), box)
end

-- Writes a sandbox's new state and what follows from it. The caller has checked the table.
local function setBox(box, state, closedTTL, retention)
  local k = key('sbx', box)
  call('HSET', k, 'state', state)
  if state == 'ready' then call('HSETNX', k, 'ready', NOW) end
  if final(BOXES, state) then
    call('HSET', k, 'closed', NOW)
    call('ZREM', P .. 'openboxes', box)
    call('EXPIRE', k, closedTTL)
    call('EXPIRE', key('sj', box), retention)
    call('EXPIRE', key('pkg', box), closedTTL)
  end
  due(box)
end

-- Takes a job out of its sandbox's line. Returns the new head when it was the head, '' otherwise.
local function unline(box, job)
  local line = key('line', box)
  if call('LINDEX', line, 0) ~= job then
    call('LREM', line, 1, job)
    return ''
  end
  call('LPOP', line)
  return call('LINDEX', line, 0) or ''
end

-- A sandbox that worked for its head is free again.
local function free(box, touch)
  local k = key('sbx', box)
  if call('HGET', k, 'state') ~= 'busy' then return end
  call('HSET', k, 'state', 'ready')
  if touch then call('HSET', k, 'used', NOW) end
  due(box)
end

-- Forgets the oldest entries of an index whose records have expired: two for each new one keep it in step.
local function trim(index, kind)
  for _, id in ipairs(call('ZRANGE', index, 0, 1)) do
    if call('EXISTS', key(kind, id)) == 0 then call('ZREM', index, id) end
  end
end

-- Where the task of a job that no worker has begun goes, as the dispatcher has it.
local function queueOf(queue, inline, box)
  if queue ~= '' then return queue end
  local node = call('HGET', key('sbx', box), 'node')
  if node and node ~= '' then return 'node-' .. node end
  return inline and 'control' or 'cpu'
end

-- What ends or stops things goes past every queue of jobs that wait.
local function urgent(kind) return kind == 'close' or kind == 'interrupt' or kind == 'restart' end

-- Lets a job that nothing is before onto its queue, or holds it: of each tenant SHARE tasks that nobody has begun are on a
-- queue at once, so that others come to their turn. Returns whether a task is to be on the queue.
local function admit(id)
  local j = call('HMGET', key('job', id), 'kind', 'queue', 'inline', 'sandbox', 'created', 'aq')
  if urgent(j[1]) then return true end
  local q = j[6]
  if q then
    if call('ZSCORE', key('out', q), id) then return true end
  else
    q = queueOf(j[2], j[3] == '1', j[4])
    call('HSET', key('job', id), 'aq', q, 'aqt', NOW)
  end
  if call('ZCARD', key('out', q)) < SHARE then
    call('ZREM', key('held', q), id)
    call('ZADD', key('out', q), j[5], id)
    return true
  end
  call('ZADD', key('held', q), j[5], id)
  call('SADD', P .. 'holds', q)
  return false
end

-- A job does not wait for a worker any more. Returns the one that may be enqueued in its place, '' when there is none.
local function begun(id)
  local q = call('HGET', key('job', id), 'aq')
  if not q then return '' end
  call('HDEL', key('job', id), 'aq', 'aqt')
  call('ZREM', key('held', q), id)
  if call('ZREM', key('out', q), id) == 0 then return '' end
  local first = call('ZRANGE', key('held', q), 0, 0)[1]
  if first and admit(first) then return first end
  return ''
end

-- What the dispatcher needs to know of a job.
local function row(id)
  local j = call('HMGET', key('job', id), 'state', 'attempt', 'worker', 'kind', 'inline', 'created', 'queue', 'timeout',
    'bg', 'sandbox', 'left', 'spared', 'aq')
  if not j[1] then return nil end
  local s = call('HMGET', key('sbx', j[10]), 'node', 'state')
  local head = call('LINDEX', key('line', j[10]), 0) == id
  return {id, j[1], j[2], j[3] or '', j[4], j[5], j[6], j[7], j[8], j[9], j[10], s[1] or '', s[2] or '', head and '1' or '', j[11] or '',
    j[12] or '0', j[13] and call('ZSCORE', key('held', j[13]), id) and '1' or ''}
end
