-- Admits requests of a tenant, as many of them as requests_per_minute allows. One that has a connection counts against max_connections as well,
-- both or neither. By the clock of Redis, since those of the API servers may differ.
-- Replies {'ok', requests left, seconds until all are allowed again, how many are admitted}, {'rate', microseconds until the next is allowed} or
-- {'connections', used}.
local now = call('TIME')
now = tonumber(now[1]) * 1000000 + tonumber(now[2])
local minute, rate, most = 60000000, tonumber(arg.rate), tonumber(arg.connections)
local conn, busyKey = CONNECTIONS, RATE

-- GCRA: busy is when all requests that were admitted would be over if they came evenly; it may be a minute ahead of the clock. A clock that
-- was set back does not make anyone wait longer.
local busy, count = nil, tonumber(arg.count)
if rate == 0 then return {'rate', int(minute)} end
if rate > 0 then
  local each = minute / rate
  busy = math.min(math.max(tonumber(call('GET', busyKey) or 0), now), now + minute)
  local free = now + minute - busy
  count = math.min(count, math.floor((free + 0.5) / each))
  if count < 1 then return {'rate', int(math.ceil(each - free))} end
  busy = busy + count * each
end
if most >= 0 then
  call('ZREMRANGEBYSCORE', conn, '-inf', int(now))
  local used = call('ZCARD', conn)
  if used >= most then return {'connections', int(used)} end
  call('ZADD', conn, int(now + tonumber(arg.lease_ms) * 1000), arg.id)
  call('PEXPIRE', conn, arg.lease_ms)
end
if not busy then return {'ok', '', '', int(count)} end
call('SET', busyKey, int(busy), 'PX', int(math.ceil((busy - now) / 1000) + 1000))
return {'ok', int(math.floor((minute - (busy - now)) * rate / minute + 0.0001)), int(math.ceil((busy - now) / 1000000)), int(count)}
