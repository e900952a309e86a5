-- Gives back what expired records of finished jobs and ended sandboxes counted; and, if bytes are wanted, removes such records until as many are
-- free: those first that expire first. Those that ended lately stay, and, unless callbacks says otherwise, jobs whose callback is not delivered.
-- A sandbox whose container may still run, or whose jobs have not all ended, always stays. Replies {'ok', expired ones, records removed, their bytes, how many it passed by}.
local bytes, count, skip, before = tonumber(arg.bytes), tonumber(arg.count), tonumber(arg.skip), tonumber(arg.finished_before)
local expired, removed, free, passed = refundExpired(count), 0, 0, 0
if bytes > 0 then
  for _, member in ipairs(call('ZRANGE', ENDED, skip, skip + count - 1)) do
    local id, size = string.match(member, '^(%S+) (%d+)$')
    local box = string.match(id, '^sbx:(.+)$')
    local record = box and call('HMGET', sandboxKey(box), 'closed', 'needed') or call('HMGET', jobKey(id), 'finished')
    local owed = call('ZSCORE', CALLBACKS, id)
    local used = box and (record[2] or call('EXISTS', unfinishedKey(box)) == 1)
    if (tonumber(record[1]) or 0) > before or used or owed and arg.callbacks ~= '1' then
      passed = passed + 1
    else
      if box then removeSandbox(box) else removeJob(id) end
      refundJob(member) -- of a record that has expired
      if owed then call('ZREM', CALLBACKS, id) end
      removed, free = removed + 1, free + tonumber(size)
    end
    if free >= bytes then break end
  end
end
return {'ok', int(expired), int(removed), int(free), int(passed)}
