-- Compares the bytes that are counted for a tenant's jobs and sandboxes with what its unfinished jobs and open sandboxes were charged and its indexes
-- of those that have ended, and corrects them. Replies {'ok', by how much unfinished and finished were too high}, or {'many'} if it has more
-- than one step may look at.
local ended, many = {[ENDED] = 'finished', [OWED] = 'finished', [NEEDED] = 'unfinished'}, call('ZCARD', OPEN_JOBS) + call('ZCARD', OPEN_SANDBOXES)
for index in pairs(ended) do many = many + call('ZCARD', index) end
if many > tonumber(arg.most) then return {'many'} end
local truth = {unfinished = 0, finished = 0}
for _, id in ipairs(call('ZRANGE', OPEN_JOBS, 0, -1)) do
  truth.unfinished = truth.unfinished + tonumber(call('HGET', jobKey(id), 'size') or 0)
end
for _, box in ipairs(call('ZRANGE', OPEN_SANDBOXES, 0, -1)) do
  truth.unfinished = truth.unfinished + tonumber(call('HGET', sandboxKey(box), 'size') or 0)
end
for index, field in pairs(ended) do
  for _, member in ipairs(call('ZRANGE', index, 0, -1)) do
    truth[field] = truth[field] + tonumber(string.match(member, ' (%d+)$'))
  end
end
local reply = {'ok'}
for _, name in ipairs({'unfinished', 'finished'}) do
  local drift = tonumber(call('HGET', MEMORY, name) or 0) - truth[name]
  if drift ~= 0 then call('HSET', MEMORY, name, int(truth[name])) end
  table.insert(reply, int(drift))
end
return reply
