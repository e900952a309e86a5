-- The warm pool: sandboxes started ahead of need. KEYS[1] is the pool's prefix. A member is a hash: doc, node, kind (what it can serve),
-- state (starting, idle, claimed), tenant, at (when it got its state). The idle members of a kind are a sorted set by when they were ready.
-- ARGV: operation, now (microseconds), what the operation needs. Replies {'ok', …}, {'none'}.
local P, op, now = KEYS[1], ARGV[1], ARGV[2]
local call = redis.call

local function member(id) return P .. 'm:' .. id end
local function idle(kind) return P .. 'idle:' .. kind end

local function drop(id)
  local f = call('HMGET', member(id), 'node', 'kind')
  call('DEL', member(id))
  call('ZREM', idle(f[2] or ''), id)
  call('SREM', P .. 'node:' .. (f[1] or ''), id)
end

if op == 'begin' then -- id, node, kind, doc
  local id, node = ARGV[3], ARGV[4]
  call('HSET', member(id), 'doc', ARGV[6], 'node', node, 'kind', ARGV[5], 'state', 'starting', 'at', now)
  call('SADD', P .. 'node:' .. node, id)
  call('SADD', P .. 'nodes', node)
  return {'ok'}
end

if op == 'ready' then -- id, doc
  local f = call('HMGET', member(ARGV[3]), 'state', 'kind')
  if f[1] == 'idle' then return {'ok'} end -- a retry of a call whose answer was lost
  if f[1] ~= 'starting' then return {'none'} end
  call('HSET', member(ARGV[3]), 'doc', ARGV[4], 'state', 'idle', 'at', now, 'ready', now)
  call('ZADD', idle(f[2]), now, ARGV[3])
  return {'ok'}
end

if op == 'claim' then -- kind, tenant, nodes; the oldest first
  local nodes = {}
  for i = 5, #ARGV do nodes[ARGV[i]] = true end
  for from = 0, 960, 64 do
    local ids = call('ZRANGE', idle(ARGV[3]), from, from + 63)
    for _, id in ipairs(ids) do
      local f = call('HMGET', member(id), 'state', 'node', 'doc')
      if f[1] == 'idle' and nodes[f[2]] then
        call('ZREM', idle(ARGV[3]), id)
        call('HSET', member(id), 'state', 'claimed', 'tenant', ARGV[4], 'at', now)
        return {'ok', id, f[3]}
      end
    end
    if #ids < 64 then break end
  end
  return {'none'}
end

if op == 'return' then -- id, tenant; nothing of the tenant came into it
  local f = call('HMGET', member(ARGV[3]), 'state', 'tenant', 'kind', 'ready')
  if f[1] ~= 'claimed' or f[2] ~= ARGV[4] then return {'none'} end
  call('HSET', member(ARGV[3]), 'state', 'idle', 'at', f[4])
  call('HDEL', member(ARGV[3]), 'tenant')
  call('ZADD', idle(f[3]), f[4], ARGV[3])
  return {'ok'}
end

if op == 'drop' then -- id, states in which it may be dropped
  local state = call('HGET', member(ARGV[3]), 'state')
  for i = 4, #ARGV do
    if state == ARGV[i] then
      drop(ARGV[3])
      return {'ok'}
    end
  end
  return {'none'}
end

if op == 'get' then -- id
  local f = call('HMGET', member(ARGV[3]), 'doc', 'state', 'tenant', 'at')
  if not f[1] then return {'none'} end
  return {'ok', {{ARGV[3], f[1], f[2], f[3] or '', f[4]}}}
end

-- list: nodes; none means all
local nodes, rows = {}, {}
for i = 3, #ARGV do nodes[i - 2] = ARGV[i] end
if #nodes == 0 then nodes = call('SMEMBERS', P .. 'nodes') end
for _, node in ipairs(nodes) do
  local ids = call('SMEMBERS', P .. 'node:' .. node)
  for _, id in ipairs(ids) do
    local f = call('HMGET', member(id), 'doc', 'state', 'tenant', 'at')
    if f[1] then table.insert(rows, {id, f[1], f[2], f[3] or '', f[4]}) else call('SREM', P .. 'node:' .. node, id) end
  end
  if #ids == 0 then call('SREM', P .. 'nodes', node) end
end
return {'ok', rows}
