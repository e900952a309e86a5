-- Reservations of memory and cores on nodes. A reservation is, by its sandbox, "memory cores at tenant", followed by the sandbox's generation
-- from the second on; a node is, by its name, "memory cores memory-capacity cores-capacity seen"; the sandbox that goes first is "sandbox node". Cores are in thousandths. When a node was seen is by the clock of Redis, since those of workers differ; nodes that
-- were not seen for a while are removed.
-- Operations: look, reserve, force (whatever is free), release. The generation is the fence ('0': none): what a later one has reserved stays.
-- Replies {'ok' | 'full' | 'waiting' (another sandbox goes first) | 'fenced', nodes}.
local op, node, sandbox = arg.op, arg.node, arg.sandbox
local reservations, nodes, first, started = reservationsKey(node), CAPACITIES, FIRST, startsKey(arg.queue)
local memoryCapacity, coresCapacity = tonumber(arg.memory_capacity), tonumber(arg.cores_capacity)

local function size(text)
  local memory, cores = string.match(text or '', '^(%S+) (%S+)')
  return tonumber(memory) or 0, tonumber(cores) or 0
end

local generation = tonumber(arg.generation)
local stored = string.match(call('HGET', reservations, sandbox) or '', '^%S+ %S+ %S+ %S* (%d+)$')
local ownGeneration = tonumber(stored or 1)
local newer = generation > 0 and ownGeneration > generation

local verdict = 'ok'
if op ~= 'look' and newer then
  verdict = 'fenced'
elseif op == 'release' then
  call('HDEL', reservations, sandbox)
  if string.match(call('GET', first) or '', '^(.+) %S+$') == sandbox then call('DEL', first) end
end
local memory, cores = 0, 0 -- of the other sandboxes
local list = call('HGETALL', reservations)
local own
for i = 1, #list, 2 do
  if list[i] == sandbox then
    own = list[i + 1]
  else
    local m, c = size(list[i + 1])
    memory, cores = memory + m, cores + c
  end
end
if verdict == 'ok' and (op == 'reserve' or op == 'force') then
  local wantMemory, wantCores = tonumber(arg.memory), tonumber(arg.cores)
  local ownMemory, ownCores = size(own)
  local firstSandbox, firstNode = string.match(call('GET', first) or '', '^(.+) (%S+)$')
  if op == 'force' or (own and wantMemory <= ownMemory and wantCores <= ownCores) then
    verdict = 'ok' -- forced, or its reservation does not grow
  elseif firstSandbox and firstSandbox ~= sandbox and firstNode == node then
    verdict = 'waiting'
  elseif memory + wantMemory > memoryCapacity or cores + wantCores > coresCapacity then
    verdict = 'full'
    if firstSandbox == sandbox then
      call('SET', first, sandbox .. ' ' .. firstNode, 'PX', arg.first_ms)
    elseif not firstSandbox and arg.waited_long == '1' and wantMemory <= memoryCapacity and wantCores <= coresCapacity then
      call('SET', first, sandbox .. ' ' .. node, 'PX', arg.first_ms)
    end
  end
  if verdict == 'ok' then
    own = arg.memory .. ' ' .. arg.cores .. ' ' .. NOW .. ' ' .. arg.tenant .. (generation > 1 and ' ' .. arg.generation or '')
    call('HSET', reservations, sandbox, own)
    if firstSandbox == sandbox then call('DEL', first) end
    if op == 'reserve' and arg.queue ~= '' and ownMemory == 0 then
      call('LPUSH', started, NOW)
      call('LTRIM', started, 0, 31)
      call('EXPIRE', started, 3600)
    end
  end
end
local m, c = size(own)
local now = call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
call('HSET', nodes, node, string.format('%d %d %d %d %.0f', memory + m, cores + c, memoryCapacity, coresCapacity, now))
local all, live = call('HGETALL', nodes), {}
for i = 1, #all, 2 do
  local seen = tonumber(string.match(all[i + 1], '^%d+ %d+ %d+ %d+ (%d+)$') or '')
  if seen and math.abs(now - seen) <= tonumber(arg.node_ttl) then
    table.insert(live, all[i])
    table.insert(live, all[i + 1])
  else
    call('HDEL', nodes, all[i])
  end
end
return {verdict, live}
