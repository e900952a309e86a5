-- Compares what is counted as stored with the manifests, the running jobs, the hibernated sandboxes and the index of documents of a tenant,
-- and corrects it. Replies {'ok', by how many bytes, artifacts, reserved bytes and kept bytes the counts were too high}, or {'many'} if the tenant has more manifests than one step may look at.
local stored = P .. 'stored'
if call('ZCARD', P .. 'mfs') + call('ZCARD', P .. 'open') + call('ZCARD', P .. 'openboxes') + call('HLEN', P .. 'kept') > tonumber(arg.most) then return {'many'} end
local truth = {bytes = 0, artifacts = 0, reserved = 0, kept = 0}
for _, job in ipairs(call('ZRANGE', P .. 'mfs', 0, -1)) do
  local m = call('HMGET', key('mf', job), 'bytes', 'count', 'sandbox')
  if m[1] then
    truth.bytes, truth.artifacts = truth.bytes + tonumber(m[1]), truth.artifacts + tonumber(m[2])
  else
    call('ZREM', P .. 'mfs', job)
    call('ZREM', P .. 'mfexp', job)
  end
end
for _, job in ipairs(call('ZRANGE', P .. 'open', 0, -1)) do
  truth.reserved = truth.reserved + (tonumber(call('HGET', key('job', job), 'reserved')) or 0)
end
for _, box in ipairs(call('ZRANGE', P .. 'openboxes', 0, -1)) do
  truth.reserved = truth.reserved + (tonumber(call('HGET', key('sbx', box), 'frozen')) or 0)
end
local kept = call('HGETALL', P .. 'kept')
for i = 1, #kept, 2 do
  local id, bytes, at = kept[i], kept[i + 1], call('ZSCORE', P .. 'docs', kept[i])
  if at then
    truth.kept = truth.kept + tonumber(bytes)
    local job = string.match(id, '^staging/(.+)$')
    if job and at == 'inf' and not call('ZSCORE', P .. 'open', job) then call('ZADD', P .. 'docs', NOW, id) end
  else
    call('HDEL', P .. 'kept', id)
  end
end
local reply = {'ok'}
for _, name in ipairs({'bytes', 'artifacts', 'reserved', 'kept'}) do
  local drift = (tonumber(call('HGET', stored, name)) or 0) - truth[name]
  if drift ~= 0 then call('HSET', stored, name, int(truth[name])) end
  table.insert(reply, int(drift))
end
return reply
