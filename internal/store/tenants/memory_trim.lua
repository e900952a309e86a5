-- Gives back what expired records of finished jobs and ended sandboxes counted; and, if bytes are wanted, removes such records until as many are
-- free: those first that expire first. Those that ended lately stay, and sandboxes whose jobs have not all ended. What stays for longer leaves the
-- index: jobs whose callback is not delivered are removed only if owed says so, from their own index; and sandboxes whose container may still run,
-- which the release before has put here. Replies {'ok', expired ones, records removed, their bytes, how many it passed by, '1' if these were the
-- last of the index}.
local bytes, count, skip, before = tonumber(arg.bytes), tonumber(arg.count), tonumber(arg.skip), tonumber(arg.finished_before)
local expired = refundExpired(ENDED, count) + refundExpired(OWED, count) + refundExpired(NEEDED, count)
local removed, free, passed, last = 0, 0, 0, false
if bytes > 0 then
  local index = arg.owed == '1' and OWED or ENDED
  local found = call('ZRANGE', index, skip, skip + count - 1, 'WITHSCORES')
  last = #found < 2 * count
  for i = 1, #found, 2 do
    local member = found[i]
    local id, size = string.match(member, '^(%S+) (%d+)$')
    local box = string.match(id, '^sbx:(.+)$')
    local record = box and call('HMGET', sandboxKey(box), 'closed', 'needed') or call('HMGET', jobKey(id), 'finished')
    if record[2] then
      refundJob(member)
      call('HINCRBY', MEMORY, 'unfinished', size)
      call('ZADD', NEEDED, found[i + 1], member)
    elseif index == ENDED and call('ZSCORE', CALLBACKS, id) then
      call('ZREM', ENDED, member)
      call('ZADD', OWED, found[i + 1], member)
    elseif (tonumber(record[1]) or 0) > before or box and call('EXISTS', unfinishedKey(box)) == 1 then
      passed = passed + 1
    else
      if box then removeSandbox(box) else removeJob(id) end
      refundJob(member) -- of a record that has expired
      call('ZREM', CALLBACKS, id)
      removed, free = removed + 1, free + tonumber(size)
    end
    if free >= bytes then break end
  end
end
return {'ok', int(expired), int(removed), int(free), int(passed), flag(last)}
