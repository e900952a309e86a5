-- A running job leaves its line and runs on. ARGV: id, attempt.
local id, attempt = ARGV[3], ARGV[4]
local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'inline', 'left')
if not j[1] then return {'notfound'} end
if j[1] ~= 'running' or j[2] ~= attempt then return {'fenced'} end
if j[4] == '1' then return {'ok', ''} end
if j[5] == '1' then
  local head = call('LINDEX', key('line', j[3]), 0)
  if head and (call('HGET', key('job', head), 'state') ~= 'queued' or not admit(head)) then head = false end
  return {'ok', head or ''}
end
call('HSET', k, 'left', '1')
local head = unline(j[3], id)
free(j[3], false)
if head ~= '' and not admit(head) then head = '' end
return {'ok', head}
