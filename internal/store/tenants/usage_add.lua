-- Adds what a sandbox has used since its last sample to its tenant's day. The record remembers the sample, so nothing is added twice.
-- It also remembers the newest samples for people to look at, those that are at least a second apart: thousandths of a core and KiB.
-- Replies {'ok', what was added, as names and values}.
local k, usage = sandboxKey(arg.id), usageKey(arg.day)
local s = call('HMGET', k, 'state', 'sample', 'ready', 'closed', 'recent')
if not s[1] then return {'ok', {}} end
local cpu, memory, gpus, now = tonumber(arg.cpu), tonumber(arg.memory_kb), tonumber(arg.gpus), tonumber(NOW)
local container, lastCPU, lastMemory, since = string.match(s[2] or '', '^(%S+) (%d+) (%d+) (%d+)$')
lastCPU, lastMemory, since = tonumber(lastCPU), tonumber(lastMemory), tonumber(since or s[3] or now)
if container ~= arg.container then lastCPU, lastMemory = 0, memory end
local ms = math.max(now - since, 0) / 1000
local add = {
  cpu = math.max(cpu - lastCPU, 0), mem = (memory + lastMemory) / 2 * ms, gpu = gpus * ms, box = ms,
}
call('HSET', k, 'sample', arg.container .. ' ' .. int(math.max(cpu, lastCPU)) .. ' ' .. arg.memory_kb .. ' ' .. int(math.max(now, since)))
if ms >= 1000 then
  local recent = {}
  for one in string.gmatch(s[5] or '', '%S+') do table.insert(recent, one) end
  table.insert(recent, int(add.cpu / ms) .. ':' .. arg.memory_kb)
  while #recent > tonumber(arg.recent) do table.remove(recent, 1) end
  call('HSET', k, 'recent', table.concat(recent, ' '))
end
local out = {}
for name, n in pairs(add) do
  if n >= 0.5 then call('HINCRBY', usage, name, int(n)) end
  table.insert(out, name)
  table.insert(out, int(n))
end
call('EXPIRE', usage, arg.keep)
return {'ok', out}
