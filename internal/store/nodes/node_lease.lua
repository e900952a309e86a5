-- Leases of nodes, by the clock of Redis, since those of workers differ. They are nodes by when they were last renewed, in
-- microseconds. Operations:
--   renew: those of nodes
--   check: renews those of nodes (they have a live worker), and gives one to each of known without one; time without checks does
--     not count, since the farm was stopped then
--   look: at those of nodes
--   drop: those of nodes that have lapsed
-- Replies {now, node and age in microseconds, …}, the nodes being all (check), those named (look), those dropped, or those renewed that are
-- drained.
local leases, checked, drains = LEASES, CHECKED, DRAINS
local now = call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
local nodes = cjson.decode(arg.nodes)
local timeout, gapMax = tonumber(arg.timeout), tonumber(arg.gap)

local function age(node)
  local at = call('ZSCORE', leases, node)
  return at and math.max(now - tonumber(at), 0)
end

local reply = {int(now)}
local function answer(node, n)
  table.insert(reply, node)
  table.insert(reply, int(n))
end

if arg.op == 'renew' then
  for _, node in ipairs(nodes) do
    call('ZADD', leases, int(now), node)
    if call('HEXISTS', drains, node) == 1 then answer(node, 0) end
  end
elseif arg.op == 'check' then
  local last = tonumber(call('GET', checked) or '')
  local gap = last and now - last
  if not gap or gap > gapMax or gap < 0 then
    local list = call('ZRANGE', leases, 0, -1, 'WITHSCORES')
    for i = 1, #list, 2 do
      local at = tonumber(list[i + 1])
      if not gap then
        call('ZADD', leases, int(now), list[i])
      elseif gap < 0 or last - at < timeout then -- else it had lapsed before
        call('ZADD', leases, int(math.min(at + gap, now)), list[i])
      end
    end
  end
  call('SET', checked, int(now))
  for _, node in ipairs(nodes) do call('ZADD', leases, int(now), node) end
  for _, node in ipairs(cjson.decode(arg.known)) do call('ZADD', leases, 'NX', int(now), node) end
  for _, node in ipairs(call('ZRANGE', leases, 0, -1)) do answer(node, age(node)) end
elseif arg.op == 'look' then
  for _, node in ipairs(nodes) do
    local n = age(node)
    if n then answer(node, n) end
  end
elseif arg.op == 'drop' then
  for _, node in ipairs(nodes) do
    local n = age(node)
    if n and n >= timeout then
      call('ZREM', leases, node)
      answer(node, n)
    end
  end
end
return reply
