-- Gives back what expired records of finished jobs counted; and, if bytes are wanted, removes finished jobs until as many are free: those first
-- whose records expire first. Jobs that finished lately stay, and, unless callbacks says otherwise, those whose callback is not delivered.
-- Replies {'ok', expired ones, jobs removed, their bytes, how many jobs it passed by}.
local bytes, count, skip, before = tonumber(arg.bytes), tonumber(arg.count), tonumber(arg.skip), tonumber(arg.finished_before)
local expired, removed, free, passed = refundExpired(count), 0, 0, 0
if bytes > 0 then
  for _, member in ipairs(call('ZRANGE', ENDED, skip, skip + count - 1)) do
    local id, size = string.match(member, '^(%S+) (%d+)$')
    local owed = call('ZSCORE', P .. 'callbacks', id)
    if (tonumber(call('HGET', key('job', id), 'finished')) or 0) > before or owed and arg.callbacks ~= '1' then
      passed = passed + 1
    else
      removeJob(id)
      refundJob(member) -- of a record that has expired
      if owed then call('ZREM', P .. 'callbacks', id) end
      removed, free = removed + 1, free + tonumber(size)
    end
    if free >= bytes then break end
  end
end
return {'ok', int(expired), int(removed), int(free), int(passed)}
