-- A stretch of the unfinished jobs that some queue should hold, or whose sandbox is gone. ARGV: sequence number to start
-- behind, how many to look at. Reply: {'ok', last number looked at or '', rows}.
local found = call('ZRANGEBYSCORE', P .. 'open', '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local rows = {}
for i = 1, #found, 2 do
  local r = row(found[i])
  if not r then
    call('ZREM', P .. 'open', found[i])
  else
    local boxGone = r[13] == '' or final(BOXES, r[13])
    local ready = r[6] == '1' or r[14] == '1'
    -- A job that is held for its tenant's other ones is let on when there is a place.
    if r[2] == 'running' or boxGone or (ready and admit(r[1])) then table.insert(rows, r) end
  end
end
return {'ok', found[#found] or '', rows}
