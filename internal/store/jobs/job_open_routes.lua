-- Looks at some unfinished jobs and lists those that a queue should hold, or whose sandbox has ended. ARGV: sequence number to start
-- behind, how many to look at. Replies {'ok', last number looked at or '', routes}.
local found = call('ZRANGEBYSCORE', OPEN_JOBS, '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local rows = {}
for i = 1, #found, 2 do
  local id = found[i]
  local r = route(id)
  if not r then
    call('ZREM', OPEN_JOBS, id)
  else
    local f = {}
    for n = 1, #r, 2 do f[r[n]] = r[n + 1] end
    local sandboxEnded = f.sandbox_state == '' or final(SANDBOXES, f.sandbox_state)
    local runnable = f.inline == '1' or f.head == '1'
    -- takeQueueSlot also unparks a job for which there is a slot now.
    if f.state == 'running' or sandboxEnded or (runnable and takeQueueSlot(id)) then table.insert(rows, r) end
  end
end
return {'ok', found[#found] or '', rows}
