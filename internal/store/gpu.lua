-- Leases of a node's GPUs. KEYS: the leases (device → "fence bound worker at sandbox tenant"; the field '#' says that the reconciler has
-- compared leases with containers, and nothing is leased before), the farm's last fence, the sandbox that goes first on this node.
-- Operations:
--   lease: all or nothing; what the sandbox has already it keeps, under a new fence
--   bind: its container is about to start
--   return: under a fence, or any ('0')
--   restore: devices that the sandbox's container has, unless another sandbox leases them
--   open: leases may be made from now on
--   look
-- Replies {verdict, fence, all leases}. Verdicts: ok, full, waiting (another sandbox goes first), closed (not open yet), fenced, taken
-- (restore: another sandbox has one of the devices).
local call = redis.call
local leases, fences, first = KEYS[1], KEYS[2], KEYS[3]
local op, sandbox = arg.op, arg.sandbox
local devices = cjson.decode(arg.devices)

local own, ownerOf, fence = {}, {}, '0'
local list = call('HGETALL', leases)
for i = 1, #list, 2 do
  local f, box = string.match(list[i + 1], '^(%d+) %S* %S+ %d+ (%S+)')
  if box then
    ownerOf[list[i]] = box
    if box == sandbox then
      table.insert(own, list[i])
      fence = f
    end
  end
end

local function write(chosen, bound, worker)
  for _, device in ipairs(chosen) do
    call('HSET', leases, device, fence .. ' ' .. bound .. ' ' .. worker .. ' ' .. arg.now .. ' ' .. sandbox .. ' ' .. arg.tenant)
  end
end

local function lease()
  if call('HEXISTS', leases, '#') == 0 then return 'closed' end
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
  fence = tostring(call('INCR', fences))
  write(chosen, '-', arg.worker)
  return 'ok'
end

local verdict = 'ok'
if op == 'lease' then
  verdict = lease()
elseif op == 'bind' then
  if #own == 0 or fence ~= arg.fence then
    verdict = 'fenced'
  else
    for _, device in ipairs(own) do
      local before, behind = string.match(call('HGET', leases, device), '^(%d+) %S*( .*)$')
      call('HSET', leases, device, before .. ' bound' .. behind)
    end
  end
elseif op == 'return' then
  if call('GET', first) == sandbox then call('DEL', first) end
  if #own > 0 and (arg.fence == '0' or fence == arg.fence) then
    for _, device in ipairs(own) do call('HDEL', leases, device) end
  elseif #own > 0 then
    verdict = 'fenced'
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
  if #missing > 0 then
    if fence == '0' then fence = tostring(call('INCR', fences)) end
    write(missing, 'bound', '-')
  end
elseif op == 'open' then
  call('HSETNX', leases, '#', arg.now)
end
return {verdict, fence, call('HGETALL', leases)}
