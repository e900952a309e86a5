-- Forgets a stretch of an index, from its oldest entries on: those whose records are gone, and of finished jobs the oldest
-- that are over a bound. ARGV: index, kind of its records, number to start behind, how many to look at, how many entries
-- may stay ('' for all), a moment: what finished after it stays. A job whose callback is not delivered stays too.
-- Reply: {'ok', last number looked at or '', entries without records, jobs removed, how many are over the bound still}.
local index, kind, from, stretch, most, old = P .. ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local over = most and call('ZCARD', index) - most or 0
local found = call('ZRANGEBYSCORE', index, '(' .. from, '+inf', 'WITHSCORES', 'LIMIT', 0, stretch)
local gone, removed = 0, 0
for i = 1, #found, 2 do
  local id = found[i]
  local k = key(kind, id)
  if call('EXISTS', k) == 0 then
    call('ZREM', index, id)
    gone, over = gone + 1, over - 1
  elseif over > 0 then
    local j = call('HMGET', k, 'state', 'finished', 'sandbox')
    if final(JOBS, j[1]) and (tonumber(j[2]) or 0) <= old and not call('ZSCORE', P .. 'callbacks', id) then
      call('DEL', k, key('ev', id), key('req', id))
      call('ZREM', index, id)
      call('ZREM', key('sj', j[3]), id)
      removed, over = removed + 1, over - 1
    end
  end
end
return {'ok', found[#found] or '', int(gone), int(removed), int(math.max(over, 0))}
