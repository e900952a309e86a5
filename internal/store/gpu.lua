-- The GPUs of a node that sandboxes have. KEYS: the leases (device → "fence bound worker at sandbox tenant"; the field '#'
-- says that the containers of the node were looked at, and nothing is leased before), the farm's last fence, the sandbox
-- that others of the node wait for. Nothing is read but the node's own leases.
-- ARGV: operation, now, sandbox, then
--   lease: tenant, worker, count, '1' when the sandbox has waited so long that others wait for it, milliseconds that they
--          do, candidates; what the sandbox has already is kept and gets a new fence
--   bind, return: fence (return: '0' for any)
--   adopt: tenant, devices that the sandbox's container has; only those that nobody has are taken
--   open, look
-- Reply: {verdict, fence, all leases}. Verdicts: ok, full, held (another sandbox is to come first), closed (nobody looked
-- at the containers yet), fenced, taken (adopt: another sandbox has one of the devices).
local call = redis.call
local leases, fences, hold = KEYS[1], KEYS[2], KEYS[3]
local op, now, sandbox = ARGV[1], ARGV[2], ARGV[3]

local own, taken, fence = {}, {}, '0'
local list = call('HGETALL', leases)
for i = 1, #list, 2 do
  local f, box = string.match(list[i + 1], '^(%d+) %S* %S+ %d+ (%S+)')
  if box then
    taken[list[i]] = box
    if box == sandbox then
      table.insert(own, list[i])
      fence = f
    end
  end
end

local function write(devices, bound, worker, tenant)
  for _, device in ipairs(devices) do
    call('HSET', leases, device, fence .. ' ' .. bound .. ' ' .. worker .. ' ' .. now .. ' ' .. sandbox .. ' ' .. tenant)
  end
end

local function lease()
  local tenant, worker, count, waited = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7] == '1'
  if call('HEXISTS', leases, '#') == 0 then return 'closed' end
  local devices, free = {}, 0
  for i = 9, #ARGV do
    if not taken[ARGV[i]] then
      free = free + 1
      if free <= count then table.insert(devices, ARGV[i]) end
    end
  end
  local first = call('GET', hold)
  if #own > 0 then
    if #own ~= count then return 'full' end -- it never asks for another number: these are another's doing, and are given back
    devices = own
  elseif first and first ~= sandbox then
    return 'held'
  elseif free < count then
    if count <= #ARGV - 8 and (first == sandbox or waited) then call('SET', hold, sandbox, 'PX', ARGV[8]) end
    return 'full'
  end
  if first == sandbox then call('DEL', hold) end
  fence = tostring(call('INCR', fences))
  write(devices, '-', worker, tenant)
  return 'ok'
end

local verdict = 'ok'
if op == 'lease' then
  verdict = lease()
elseif op == 'bind' then
  if #own == 0 or fence ~= ARGV[4] then
    verdict = 'fenced'
  else
    for _, device in ipairs(own) do
      local before, behind = string.match(call('HGET', leases, device), '^(%d+) %S*( .*)$')
      call('HSET', leases, device, before .. ' bound' .. behind)
    end
  end
elseif op == 'return' then
  if call('GET', hold) == sandbox then call('DEL', hold) end
  if #own > 0 and (ARGV[4] == '0' or fence == ARGV[4]) then
    for _, device in ipairs(own) do call('HDEL', leases, device) end
  elseif #own > 0 then
    verdict = 'fenced'
  end
elseif op == 'adopt' then
  local missing = {}
  for i = 5, #ARGV do
    if taken[ARGV[i]] == nil then
      table.insert(missing, ARGV[i])
    elseif taken[ARGV[i]] ~= sandbox then
      verdict = 'taken'
    end
  end
  if #missing > 0 then
    if fence == '0' then fence = tostring(call('INCR', fences)) end
    write(missing, 'bound', '-', ARGV[4])
  end
elseif op == 'open' then
  call('HSETNX', leases, '#', now)
end
return {verdict, fence, call('HGETALL', leases)}
