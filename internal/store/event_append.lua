-- Appends events to a job that is not final. ARGV: id, then an id ('' for the next one) and the JSON of each event.
local id = ARGV[3]
local state = call('HGET', key('job', id), 'state')
if not state then return {'notfound'} end
if final(JOBS, state) then return {'ok'} end
local appended = false
for i = 4, #ARGV, 2 do
  if appendEvent(id, ARGV[i], ARGV[i + 1]) then appended = true end
end
if appended then notifyWatchers(id) end
return {'ok'}
