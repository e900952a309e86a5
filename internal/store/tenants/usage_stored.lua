-- Adds the time that artifacts were stored since the last call to a tenant's day. ARGV: day, seconds to keep it.
local bytes, since = tonumber(call('HGET', STORED, 'bytes') or 0), call('HGET', USE, 'stored_at')
local now = tonumber(NOW)
since = tonumber(since or now)
local seconds = math.max(now - since, 0) / 1000000
call('HSET', USE, 'stored_at', int(math.max(now, since)))
if bytes > 0 and seconds > 0 then
  local usage = usageKey(ARGV[3])
  call('HINCRBY', usage, 'stored', int(bytes / 1024 * seconds))
  call('EXPIRE', usage, ARGV[4])
end
return {'ok'}
