-- Remembers a change of the fleet and adds its event. It does neither if what is remembered is not arg.from, so that each change is reported once.
-- KEYS: what is remembered by subject, the events. Returns 1 if it was noted.
if arg.subject ~= '' then
  if (redis.call('HGET', KEYS[1], arg.subject) or '') ~= arg.from then return 0 end
  if arg.to == '' then redis.call('HDEL', KEYS[1], arg.subject) else redis.call('HSET', KEYS[1], arg.subject, arg.to) end
end
redis.call('XADD', KEYS[2], 'MAXLEN', arg.most, '*', 'e', arg.event)
return 1
