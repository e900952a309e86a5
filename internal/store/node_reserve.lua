-- The rooms of nodes: what each sandbox was promised. KEYS: the node's promises (sandbox → "memory cores at tenant"), all nodes
-- (node → "memory cores memory-capacity cores-capacity seen"), the sandbox that others must wait for ("sandbox node"), the
-- last placements of a queue. Cores are in thousandths.
-- ARGV: operation (look, reserve, force, release), now, node, capacity memory, capacity cores, sandbox, memory, cores,
-- '1' when the sandbox has waited so long that others wait for it, milliseconds that they do, '1' to note the placement,
-- tenant.
-- Reply: {'ok' | 'full' | 'held', all nodes}.
local call = redis.call
local promises, nodes, hold, begun = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local op, now, node, sandbox = ARGV[1], ARGV[2], ARGV[3], ARGV[6]
local limit, cores = tonumber(ARGV[4]), tonumber(ARGV[5])

local function two(text)
  local a, b = string.match(text or '', '^(%S+) (%S+)')
  return tonumber(a) or 0, tonumber(b) or 0
end

local verdict = 'ok'
if op == 'release' then
  call('HDEL', promises, sandbox)
  if string.match(call('GET', hold) or '', '^(.+) %S+$') == sandbox then call('DEL', hold) end
end
local memory, cpu = 0, 0
local list = call('HGETALL', promises)
local own
for i = 1, #list, 2 do
  if list[i] == sandbox then
    own = list[i + 1]
  else
    local m, c = two(list[i + 1])
    memory, cpu = memory + m, cpu + c
  end
end
if op == 'reserve' or op == 'force' then
  local m, c = tonumber(ARGV[7]), tonumber(ARGV[8])
  local oldM, oldC = two(own)
  local first, where = string.match(call('GET', hold) or '', '^(.+) (%S+)$')
  if op == 'force' or (own and m <= oldM and c <= oldC) then
    verdict = 'ok' -- it is there already, whatever else is
  elseif first and first ~= sandbox and where == node then
    verdict = 'held'
  elseif memory + m > limit or cpu + c > cores then
    verdict = 'full'
    if first == sandbox then
      call('SET', hold, sandbox .. ' ' .. where, 'PX', ARGV[10])
    elseif not first and ARGV[9] == '1' and m <= limit and c <= cores then
      call('SET', hold, sandbox .. ' ' .. node, 'PX', ARGV[10])
    end
  end
  if verdict == 'ok' then
    own = ARGV[7] .. ' ' .. ARGV[8] .. ' ' .. now .. ' ' .. ARGV[12]
    call('HSET', promises, sandbox, own)
    if first == sandbox then call('DEL', hold) end
    if op == 'reserve' and ARGV[11] == '1' and oldM == 0 then
      call('LPUSH', begun, now)
      call('LTRIM', begun, 0, 31)
      call('EXPIRE', begun, 3600)
    end
  end
end
local m, c = two(own)
call('HSET', nodes, node, string.format('%d %d %d %d %s', memory + m, cpu + c, limit, cores, now))
return {verdict, call('HGETALL', nodes)}
