-- Changes what a caller may change of a sandbox; each set_… flag says whether its value is used. Replies {'ok', sandbox}, {'notfound'},
-- {'state', state}, {'secrets'} if they are not arg.was, or {'memory', bytes of unfinished jobs and open sandboxes, bytes needed}.
local k = sandboxKey(arg.id)
local state = call('HGET', k, 'state')
if not state then return {'notfound'} end
if not ACCEPTS[state] then return {'state', state} end
local needed = arg.secrets ~= '' and #arg.secrets - call('STRLEN', secretsKey(arg.id)) or 0
local function grow(set, field, value) if set == '1' then needed = needed + #value - call('HSTRLEN', k, field) end end
grow(arg.set_name, 'name', arg.name)
grow(arg.set_labels, 'labels', arg.labels)
grow(arg.set_hosts, 'hosts', arg.hosts)
if needed > 0 and arg.max_memory ~= '0' then
  local used = tonumber(call('HGET', MEMORY, 'unfinished') or 0) + tonumber(call('HGET', STORED, 'manifests') or 0)
  if used + needed > tonumber(arg.max_memory) then return {'memory', int(used), int(needed)} end
end
if arg.secrets ~= '' then
  if call('GET', secretsKey(arg.id)) ~= arg.was then return {'secrets'} end
  call('SET', secretsKey(arg.id), arg.secrets, 'KEEPTTL')
end
if arg.set_name == '1' then call('HSET', k, 'name', arg.name) end
if arg.set_labels == '1' then call('HSET', k, 'labels', arg.labels) end
if arg.set_ttl == '1' then call('HSET', k, 'ttl', arg.ttl, 'expires', int(tonumber(NOW) + tonumber(arg.ttl) * 1000000)) end
if arg.set_hosts == '1' then call('HSET', k, 'hosts', arg.hosts) end
if arg.set_idle == '1' then call('HSET', k, 'idle', arg.idle) end
updateDeadline(arg.id)
if needed ~= 0 then chargeRecord(arg.id) end
if arg.set_ttl == '1' or arg.set_hosts == '1' or arg.secrets ~= '' then call('PUBLISH', CANCELS, arg.hint) end -- its agent or its worker must learn it
return {'ok', call('HGETALL', k)}
