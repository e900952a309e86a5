-- Changes what a caller may change of a sandbox; each set_… flag says whether its value is used. Replies {'ok', sandbox}, {'notfound'},
-- {'state', state}, {'secrets'} if they are not arg.was.
local k = key('sbx', arg.id)
local state = call('HGET', k, 'state')
if not state then return {'notfound'} end
if not ACCEPTS[state] then return {'state', state} end
if arg.secrets ~= '' then
  if call('GET', key('secrets', arg.id)) ~= arg.was then return {'secrets'} end
  call('SET', key('secrets', arg.id), arg.secrets, 'KEEPTTL')
end
if arg.set_name == '1' then call('HSET', k, 'name', arg.name) end
if arg.set_labels == '1' then call('HSET', k, 'labels', arg.labels) end
if arg.set_ttl == '1' then call('HSET', k, 'ttl', arg.ttl, 'expires', int(tonumber(NOW) + tonumber(arg.ttl) * 1000000)) end
if arg.set_hosts == '1' then call('HSET', k, 'hosts', arg.hosts) end
if arg.set_idle == '1' then call('HSET', k, 'idle', arg.idle) end
updateDeadline(arg.id)
if arg.set_ttl == '1' or arg.set_hosts == '1' or arg.secrets ~= '' then call('PUBLISH', G .. 'cancel', arg.hint) end -- its agent or its worker must learn it
return {'ok', call('HGETALL', k)}
