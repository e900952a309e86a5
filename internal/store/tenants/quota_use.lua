-- Reads the quotas of a tenant and how much of each is used. Replies {'ok', own quotas, used}, both as names and values.
local now = call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
local use = call('HMGET', USE, 'mem', 'mcpu', 'gpus')
local rate, requests = quota('requests_per_minute'), 0
local busy = tonumber(call('GET', RATE) or 0) - now
if rate > 0 and busy > 0 then requests = math.ceil(busy * rate / 60000000 - 0.0001) end
return {'ok', call('HGETALL', OWN_QUOTAS), {
  'max_sandboxes', int(call('ZCARD', OPEN_SANDBOXES)),
  'max_memory_mb', use[1] or '0',
  'max_cpus', string.format('%.3f', tonumber(use[2] or 0) / 1000),
  'max_gpus', use[3] or '0',
  'max_running', int(call('SCARD', ACTIVE)),
  'max_queued', int(call('ZCARD', OPEN_JOBS)),
  'max_stored_mb', string.format('%.3f', storedUsed() / 1048576),
  'requests_per_minute', int(requests),
  'max_connections', int(call('ZCOUNT', CONNECTIONS, int(now), '+inf')),
}}
