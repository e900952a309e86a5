-- Moves a sandbox by the table. ARGV: id, state ('' unchanged), reason, node, container, expired, touch, TTLs, the job that does
-- it ('' whoever), its attempt.
local id, to, closedTTL, retention, job, attempt = ARGV[3], ARGV[4], ARGV[10], ARGV[11], ARGV[12], ARGV[13]
local k = key('sbx', id)
local state = call('HGET', k, 'state')
if not state then return {'notfound'} end
if job ~= '' then
  local j = call('HMGET', key('job', job), 'state', 'attempt')
  if j[1] ~= 'running' or j[2] ~= attempt or tonumber(call('HGET', k, 'void') or 0) >= tonumber(attempt) then return {'fenced'} end
end
if to == '' and final(BOXES, state) or to ~= '' and not BOXES[state][to] then return {'state', state} end
for i, name in ipairs({'reason', 'node', 'container'}) do
  if ARGV[4 + i] ~= '' then call('HSET', k, name, ARGV[4 + i]) end
end
if ARGV[8] == '1' then call('HSET', k, 'expired', '1') end
if ARGV[9] == '1' then call('HSET', k, 'used', NOW) end
setBox(id, to ~= '' and to or state, closedTTL, retention)
return {'ok', call('HGETALL', k)}
