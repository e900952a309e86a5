-- Counts a tenant's parked jobs by queue. Replies {'ok', {queue, jobs, since when the next one is parked (microseconds)}…}.
local rows = {}
for _, q in ipairs(call('SMEMBERS', PARKED_SHARES)) do -- queue shares; of a queue there may be several
  local n = call('ZCARD', parkedKey(q))
  if n == 0 then
    call('SREM', PARKED_SHARES, q)
  else
    local first = call('ZRANGE', parkedKey(q), 0, 0)[1]
    table.insert(rows, {string.match(q, '^[^/]+'), int(n), call('HGET', jobKey(first), 'aqt') or ''})
  end
end
return {'ok', rows}
