-- Leases of a node's GPUs. A lease is, by its device, "generation state worker at sandbox tenant"; the field '#' says that the reconciler has
-- compared leases with containers, and nothing is leased before. The generation is that of the
-- sandbox, and its fence. States: leased, started (its container is about to start or has). Rows of the release before have other states and
-- count as older than any generation.
-- Operations:
--   lease: all or nothing; what the sandbox has already it keeps
--   start: its container is about to start with these devices, which must be what is leased to this generation
--   return: leases of this generation or an earlier one ('0': any); with leased_at only a lease of that time
--   restore: devices that the sandbox's container has, unless another sandbox leases them
--   open: leases may be made from now on
--   look
-- Replies {verdict, all leases}. Verdicts: ok, full, waiting (another sandbox goes first), closed (not open yet), fenced, taken
-- (restore: another sandbox has one of the devices).
local leases, first = gpusKey(arg.node), gpuFirstKey(arg.node)
local op, sandbox, generation = arg.op, arg.sandbox, tonumber(arg.generation)
local devices = cjson.decode(arg.devices)

local own, ownerOf, ownGeneration, ownAt = {}, {}, 0, ''
local list = call('HGETALL', leases)
for i = 1, #list, 2 do
  local g, state, at, box = string.match(list[i + 1], '^(%d+) (%S+) %S+ (%d+) (%S+)')
  if box then
    ownerOf[list[i]] = box
    if box == sandbox then
      table.insert(own, list[i])
      if state == 'leased' or state == 'started' then ownGeneration = tonumber(g) end
      ownAt = at
    end
  end
end
local newer = #own > 0 and generation > 0 and ownGeneration > generation -- a later generation has its leases

local function write(chosen, state, worker)
  for _, device in ipairs(chosen) do
    call('HSET', leases, device, arg.generation .. ' ' .. state .. ' ' .. worker .. ' ' .. NOW .. ' ' .. sandbox .. ' ' .. arg.tenant)
  end
end

local function lease()
  if call('HEXISTS', leases, '#') == 0 then return 'closed' end
  if newer then return 'fenced' end
  local count, chosen, free = tonumber(arg.count), {}, 0
  for _, device in ipairs(devices) do
    if not ownerOf[device] then
      free = free + 1
      if free <= count then table.insert(chosen, device) end
    end
  end
  local firstSandbox = call('GET', first)
  if #own > 0 then
    if #own ~= count then return 'full' end -- a sandbox never asks for another number, so another sandbox leased these; they are returned
    chosen = own
  elseif firstSandbox and firstSandbox ~= sandbox then
    return 'waiting'
  elseif free < count then
    if count <= #devices and (firstSandbox == sandbox or arg.waited_long == '1') then call('SET', first, sandbox, 'PX', arg.first_ms) end
    return 'full'
  end
  if firstSandbox == sandbox then call('DEL', first) end
  write(chosen, 'leased', arg.worker)
  return 'ok'
end

-- Whether exactly these devices are leased to this generation.
local function leasedAs(wanted)
  if #own ~= #wanted or ownGeneration ~= generation then return false end
  for _, device in ipairs(wanted) do
    if ownerOf[device] ~= sandbox then return false end
  end
  return true
end

local verdict = 'ok'
if op == 'lease' then
  verdict = lease()
elseif op == 'start' then
  if #own > 0 and leasedAs(devices) then
    for _, device in ipairs(own) do
      local before, behind = string.match(call('HGET', leases, device), '^(%d+) %S+( .*)$')
      call('HSET', leases, device, before .. ' started' .. behind)
    end
  else
    verdict = 'fenced'
  end
elseif op == 'return' then
  if call('GET', first) == sandbox then call('DEL', first) end
  if newer or #own > 0 and arg.leased_at ~= '' and arg.leased_at ~= ownAt then
    verdict = 'fenced'
  else
    for _, device in ipairs(own) do call('HDEL', leases, device) end
  end
elseif op == 'restore' then
  local missing = {}
  for _, device in ipairs(devices) do
    if ownerOf[device] == nil then
      table.insert(missing, device)
    elseif ownerOf[device] ~= sandbox then
      verdict = 'taken'
    end
  end
  write(missing, 'started', '-')
elseif op == 'open' then
  call('HSETNX', leases, '#', NOW)
end
return {verdict, call('HGETALL', leases)}
