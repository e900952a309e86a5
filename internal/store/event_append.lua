-- Appends events to a job that is not final. ARGV: id, attempt under which it must run (0: any), bytes that the window may have, then an id
-- ('' for the next one) and the JSON of each event. Replies {'ok'}, {'fenced'}, {'notfound'}, or {'full'} if the window has no room for
-- them: then nothing is written.
local id, attempt, window = ARGV[3], ARGV[4], tonumber(ARGV[5])
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'ev', 'win')
if not j[1] then return {'notfound'} end
if final(JOBS, j[1]) then return {'ok'} end
if attempt ~= '0' and attempt ~= j[2] then return {'fenced'} end
local last, size = j[3] or '0-0', tonumber(j[4] or '0')
local new = {}
for i = 6, #ARGV, 2 do
  local at = nextEventID(last, ARGV[i])
  if at then
    last, size = at, size + #ARGV[i + 1] + EVENT_EXTRA
    table.insert(new, {at, ARGV[i + 1]})
  end
end
if #new == 0 then return {'ok'} end
if size > window then return {'full'} end
for _, event in ipairs(new) do call('XADD', key('ev', id), event[1], 'e', event[2]) end
call('HSET', k, 'ev', last, 'win', int(size))
notifyWatchers(id)
return {'ok'}
