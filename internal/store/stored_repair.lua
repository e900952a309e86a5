-- Compares what is counted as stored with the manifests, the running jobs and the hibernated sandboxes of a
-- tenant, and corrects it. Replies {'ok', by how many bytes,
-- artifacts and reserved bytes the counts were too high}, or {'many'} if the tenant has more manifests than one step may look at.
local stored = P .. 'stored'
if call('ZCARD', P .. 'mfs') + call('ZCARD', P .. 'open') + call('ZCARD', P .. 'openboxes') > tonumber(arg.most) then return {'many'} end
local truth = {bytes = 0, artifacts = 0, reserved = 0}
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
local reply = {'ok'}
for _, name in ipairs({'bytes', 'artifacts', 'reserved'}) do
  local drift = (tonumber(call('HGET', stored, name)) or 0) - truth[name]
  if drift ~= 0 then call('HSET', stored, name, int(truth[name])) end
  table.insert(reply, int(drift))
end
return reply
