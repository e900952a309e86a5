-- The warm pool: sandboxes started ahead of need. A member is a hash: doc, node, kind (what it can serve),
-- state (starting, idle, claimed), tenant, at (when it got its state). The idle members of a kind are a sorted set by when they were ready.
-- ARGV: operation, what it needs. Replies {'ok', …}, {'none'}.
local op = ARGV[3]

local function drop(id)
  local f = call('HMGET', memberKey(id), 'node', 'kind')
  call('DEL', memberKey(id))
  call('ZREM', idleKey(f[2] or ''), id)
  call('SREM', membersOfKey(f[1] or ''), id)
end

if op == 'begin' then -- id, node, kind, doc
  local id, node = ARGV[4], ARGV[5]
  call('HSET', memberKey(id), 'doc', ARGV[7], 'node', node, 'kind', ARGV[6], 'state', 'starting', 'at', NOW)
  call('SADD', membersOfKey(node), id)
  call('SADD', POOL_NODES, node)
  return {'ok'}
end

if op == 'ready' then -- id, doc
  local f = call('HMGET', memberKey(ARGV[4]), 'state', 'kind')
  if f[1] == 'idle' then return {'ok'} end -- a retry of a call whose answer was lost
  if f[1] ~= 'starting' then return {'none'} end
  call('HSET', memberKey(ARGV[4]), 'doc', ARGV[5], 'state', 'idle', 'at', NOW, 'ready', NOW)
  call('ZADD', idleKey(f[2]), NOW, ARGV[4])
  return {'ok'}
end

-- A tenant that got several members of a kind in this minute and the last leaves the last idle one to others that asked and got fewer.
local SEVERAL = 4

if op == 'claim' then -- kind, tenant, nodes; the oldest first
  local kind, tenant, nodes, minute = ARGV[4], ARGV[5], {}, math.floor(NOW / 6e7)
  for i = 6, #ARGV do nodes[ARGV[i]] = true end
  local function note(got)
    local k = claimsKey(kind .. ' ' .. minute)
    call('HINCRBY', k, tenant, got)
    call('EXPIRE', k, 120)
  end

  local function leaves()
    if call('ZCARD', idleKey(kind)) ~= 1 then return false end
    local got = {}
    for m = minute - 1, minute do
      local flat = call('HGETALL', claimsKey(kind .. ' ' .. m))
      for i = 1, #flat, 2 do got[flat[i]] = (got[flat[i]] or 0) + flat[i + 1] end
    end
    local own = got[tenant] or 0
    if own < SEVERAL then return false end
    for _, n in pairs(got) do
      if n < own then return true end
    end
    return false
  end

  if leaves() then return {'none'} end
  for from = 0, 960, 64 do
    local ids = call('ZRANGE', idleKey(kind), from, from + 63)
    for _, id in ipairs(ids) do
      local f = call('HMGET', memberKey(id), 'state', 'node', 'doc')
      if f[1] == 'idle' and nodes[f[2]] then
        call('ZREM', idleKey(kind), id)
        call('HSET', memberKey(id), 'state', 'claimed', 'tenant', tenant, 'at', NOW)
        note(1)
        return {'ok', id, f[3]}
      end
    end
    if #ids < 64 then break end
  end
  note(0)
  return {'none'}
end

if op == 'return' then -- id, tenant; nothing of the tenant came into it
  local f = call('HMGET', memberKey(ARGV[4]), 'state', 'tenant', 'kind', 'ready')
  if f[1] ~= 'claimed' or f[2] ~= ARGV[5] then return {'none'} end
  call('HSET', memberKey(ARGV[4]), 'state', 'idle', 'at', f[4])
  call('HDEL', memberKey(ARGV[4]), 'tenant')
  call('ZADD', idleKey(f[3]), f[4], ARGV[4])
  return {'ok'}
end

if op == 'drop' then -- id, states in which it may be dropped
  local state = call('HGET', memberKey(ARGV[4]), 'state')
  for i = 5, #ARGV do
    if state == ARGV[i] then
      drop(ARGV[4])
      return {'ok'}
    end
  end
  return {'none'}
end

if op == 'get' then -- id
  local f = call('HMGET', memberKey(ARGV[4]), 'doc', 'state', 'tenant', 'at')
  if not f[1] then return {'none'} end
  return {'ok', {{ARGV[4], f[1], f[2], f[3] or '', f[4]}}}
end

-- list: nodes; none means all
local nodes, rows = {}, {}
for i = 4, #ARGV do nodes[i - 3] = ARGV[i] end
if #nodes == 0 then nodes = call('SMEMBERS', POOL_NODES) end
for _, node in ipairs(nodes) do
  local ids = call('SMEMBERS', membersOfKey(node))
  for _, id in ipairs(ids) do
    local f = call('HMGET', memberKey(id), 'doc', 'state', 'tenant', 'at')
    if f[1] then table.insert(rows, {id, f[1], f[2], f[3] or '', f[4]}) else call('SREM', membersOfKey(node), id) end
  end
  if #ids == 0 then call('SREM', POOL_NODES, node) end
end
return {'ok', rows}
