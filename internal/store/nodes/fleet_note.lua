-- Remembers a change of the fleet and adds its event. It does neither if what is remembered is not arg.from, so that each change is reported once.
-- Replies {'ok'} or {'changed'}.
if arg.subject ~= '' then
  if (call('HGET', FLEET_SEEN, arg.subject) or '') ~= arg.from then return {'changed'} end
  if arg.to == '' then call('HDEL', FLEET_SEEN, arg.subject) else call('HSET', FLEET_SEEN, arg.subject, arg.to) end
end
call('XADD', FLEET_EVENTS, 'MAXLEN', arg.most, '*', 'e', arg.event)
return {'ok'}
