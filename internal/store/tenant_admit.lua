-- Admits a request of a tenant: counts it against requests_per_minute and max_connections, both or neither. By the clock of Redis, since those
-- of the API servers may differ.
-- Replies {'ok', requests left, seconds until all are allowed again}, {'rate', microseconds until the next is allowed} or {'connections', used}.
local now = call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
local minute, rate, most = 60000000, tonumber(arg.rate), tonumber(arg.connections)
local conn, busyKey = P .. 'conn', P .. 'rate'

-- GCRA: busy is when all requests that were admitted would be over if they came evenly; it may be a minute ahead of the clock. A clock that
-- was set back does not make anyone wait longer.
local busy = nil
if rate == 0 then return {'rate', int(minute)} end
if rate > 0 then
  busy = math.min(math.max(tonumber(call('GET', busyKey) or 0), now), now + minute) + minute / rate
  local ahead = busy - now - minute
  if ahead > 0.5 then return {'rate', int(math.ceil(ahead))} end
end
if most >= 0 then
  call('ZREMRANGEBYSCORE', conn, '-inf', int(now))
  local used = call('ZCARD', conn)
  if used >= most then return {'connections', int(used)} end
  call('ZADD', conn, int(now + tonumber(arg.lease_ms) * 1000), arg.id)
  call('PEXPIRE', conn, arg.lease_ms)
end
if not busy then return {'ok', '', ''} end
call('SET', busyKey, int(busy), 'PX', int(math.ceil((busy - now) / 1000) + 1000))
return {'ok', int(math.floor((minute - (busy - now)) * rate / minute + 0.0001)), int(math.ceil((busy - now) / 1000000))}
