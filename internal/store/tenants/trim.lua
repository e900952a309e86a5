-- Looks at some entries of an index, the oldest first. Removes those whose records are gone, and the oldest finished jobs beyond a bound,
-- except jobs that finished lately and jobs whose callback is not delivered.
-- Replies {'ok', last number looked at or '', entries without records, jobs removed, how many are still beyond the bound}.
local index, keep, before = arg.index, tonumber(arg.keep), tonumber(arg.finished_before) -- keep: '' for all
local excess = keep and call('ZCARD', index) - keep or 0
local found = call('ZRANGEBYSCORE', index, '(' .. arg.after, '+inf', 'WITHSCORES', 'LIMIT', 0, arg.count)
local gone, removed = 0, 0
for i = 1, #found, 2 do
  local id = found[i]
  local k = arg.records .. id
  if call('EXISTS', k) == 0 then
    call('ZREM', index, id)
    gone, excess = gone + 1, excess - 1
  elseif excess > 0 then
    local j = call('HMGET', k, 'state', 'finished')
    if final(JOBS, j[1]) and (tonumber(j[2]) or 0) <= before and not call('ZSCORE', CALLBACKS, id) then
      removeJob(id)
      removed, excess = removed + 1, excess - 1
    end
  end
end
return {'ok', found[#found] or '', int(gone), int(removed), int(math.max(excess, 0))}
