-- Compares what is counted for a tenant's quotas, and the index of sandboxes by node, with its records, and corrects them. Replies {'ok', by how
-- much each was too high; nodes: how many entries of the index were wrong}.
local drift = {sandboxes = 0, running = 0, nodes = 0}

-- A record from before its charge was recorded says in its document what the sandbox has.
local function chargeOf(box)
  local s = call('HMGET', sandboxKey(box), 'state', 'charge', 'doc')
  if not s[1] or final(SANDBOXES, s[1]) then return nil end
  local mem, mcpu, gpus = string.match(s[2] or '', '^(%d+) (%d+) (%d+)$')
  if mem then return tonumber(mem), tonumber(mcpu), tonumber(gpus) end
  local ok, doc = pcall(cjson.decode, s[3] or '')
  local spec = ok and type(doc) == 'table' and doc.spec or {}
  local has, gpu = spec.resources or {}, spec.gpu
  mem, mcpu = has.memory_mb or 0, math.floor((has.cpus or 0) * 1000 + 0.5)
  gpus = type(gpu) == 'table' and gpu.count or 0
  call('HSET', sandboxKey(box), 'charge', int(mem) .. ' ' .. int(mcpu) .. ' ' .. int(gpus))
  return mem, mcpu, gpus
end

-- The node in whose index a sandbox belongs; nil if in none.
local function placeOf(box)
  local s = call('HMGET', sandboxKey(box), 'node', 'state')
  if not s[2] or final(SANDBOXES, s[2]) then return nil end
  local node = s[1] or ''
  return (node ~= '' or s[2] == 'closing') and node or nil
end

local truth = {mem = 0, mcpu = 0, gpus = 0}
local function count(mem, mcpu, gpus)
  truth.mem, truth.mcpu, truth.gpus = truth.mem + mem, truth.mcpu + mcpu, truth.gpus + gpus
end

for _, box in ipairs(call('ZRANGE', OPEN_SANDBOXES, 0, -1)) do
  local mem, mcpu, gpus = chargeOf(box)
  if mem then
    count(mem, mcpu, gpus)
    local node = placeOf(box)
    if node then
      if call('SISMEMBER', onNodeKey(node), box) == 0 then drift.nodes = drift.nodes + 1 end
      indexNode(box, node)
    end
  else
    call('ZREM', OPEN_SANDBOXES, box)
    drift.sandboxes = drift.sandboxes + 1
  end
end
for _, node in ipairs(call('SMEMBERS', NODES)) do
  for _, box in ipairs(call('SMEMBERS', onNodeKey(node))) do
    if placeOf(box) ~= node then
      unindexNode(box, node)
      drift.nodes = drift.nodes + 1
    elseif not call('ZSCORE', OPEN_SANDBOXES, box) and call('HEXISTS', sandboxKey(box), 'charge') == 1 then
      count(chargeOf(box)) -- of a run that has ended
    end
  end
end
for name, n in pairs(truth) do
  local counted = tonumber(call('HGET', USE, name) or 0)
  drift[name] = counted - n
  if counted ~= n then call('HSET', USE, name, int(n)) end
end

-- Jobs that are over, or that lost their slot. Jobs that are missing are added by the script that claims them.
for _, id in ipairs(call('SMEMBERS', ACTIVE)) do
  local j = call('HMGET', jobKey(id), 'state', 'aq')
  local counts = j[1] == 'running' or j[1] == 'queued' and j[2] and call('ZSCORE', slotsKey(j[2]), id)
  if not counts then
    call('SREM', ACTIVE, id)
    drift.running = drift.running + 1
  end
end
return {'ok', {
  'sandboxes', int(drift.sandboxes), 'memory_mb', int(drift.mem), 'cpus', string.format('%.3f', drift.mcpu / 1000),
  'gpus', int(drift.gpus), 'running', int(drift.running), 'nodes', int(drift.nodes),
}}
