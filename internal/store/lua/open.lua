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
    if r[2] == 'running' or r[6] == '1' or r[14] == '1' or boxGone then table.insert(rows, r) end
  end
end
return {'ok', found[#found] or '', rows}
