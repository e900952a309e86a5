-- Appends events to a job that is not final. ARGV: id, then pairs of an event's id ('' for the next) and its JSON.
local id = ARGV[3]
local state = call('HGET', key('job', id), 'state')
if not state then return {'notfound'} end
if final(JOBS, state) then return {'ok'} end
local some = false
for i = 4, #ARGV, 2 do
  if event(id, ARGV[i], ARGV[i + 1]) then some = true end
end
if some then call('PUBLISH', G .. 'w:' .. id, '1') end
return {'ok'}
