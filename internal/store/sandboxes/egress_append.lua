-- Adds entries to the log of a sandbox's connections, and bytes to those that it has transferred. The log is gone with the record.
-- Replies {'ok', all bytes}, {'notfound'} or {'fenced'}.
local k, log = sandboxKey(arg.id), egressKey(arg.id)
local state = call('HGET', k, 'state')
if not state then return {'notfound'} end
if arg.generation ~= generationOf(arg.id) then return {'fenced'} end
local entries = cjson.decode(arg.entries)
if #entries > 0 then
  local size = sizeOfLog(arg.id)
  for _, entry in ipairs(entries) do
    call('XADD', log, '*', 'e', entry)
    size = size + #entry + EGRESS_EXTRA
  end
  -- The oldest go while there are too many, or too many bytes.
  local count, most, mostBytes = call('XLEN', log), tonumber(arg.most), tonumber(arg.mostbytes)
  local function full() return count > most or size - count * EGRESS_EXTRA > mostBytes end
  while count > 0 and full() do
    for _, entry in ipairs(call('XRANGE', log, '-', '+', 'COUNT', 100)) do
      if not full() then break end
      count, size = count - 1, size - sizeOfEntries({entry})
    end
    call('XTRIM', log, 'MAXLEN', count)
  end
  if count == 0 then size = 0 end
  call('HSET', k, 'logged', int(size))
end
if final(SANDBOXES, state) then
  local left = call('PTTL', k)
  if left > 0 then
    call('PEXPIRE', log, int(left))
    chargeEndedRecord(arg.id, tonumber(NOW) + left * 1000)
  end
elseif #entries > 0 then
  chargeRecord(arg.id)
end
if arg.bytes == '0' then return {'ok', call('HGET', k, 'egress') or '0'} end
return {'ok', int(call('HINCRBY', k, 'egress', arg.bytes))}
