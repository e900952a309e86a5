-- What is held of a tenant, by queue. Reply: {'ok', rows of {queue, jobs, since when the one that is next is held}}.
local rows = {}
for _, q in ipairs(call('SMEMBERS', P .. 'holds')) do
  local n = call('ZCARD', key('held', q))
  if n == 0 then
    call('SREM', P .. 'holds', q)
  else
    local first = call('ZRANGE', key('held', q), 0, 0)[1]
    table.insert(rows, {q, int(n), call('HGET', key('job', first), 'aqt') or ''})
  end
end
return {'ok', rows}
