-- Ends a job. Modes: finish (the runner, fenced), force (whoever runs it), cancel (at once when queued, a flag when
-- it runs). Replies: {'ok', next head or '', '1' when a callback is due, sandbox that ended too or '', job's fields
-- (cancel only), a job that may go onto its queue instead or ''}, {'fenced'}, {'state', state}, {'notfound'}.
local id, mode, attempt, to, result, err = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local runMS, uploadMS, lastEvent, token = ARGV[9], ARGV[10], ARGV[11], ARGV[12]
local retention, hiddenTTL, closedTTL, hint, reason = ARGV[13], ARGV[14], ARGV[15], ARGV[16], ARGV[17]

local k = key('job', id)
local j = call('HMGET', k, 'state', 'attempt', 'kind', 'sandbox', 'inline', 'hidden', 'cb', 'left', 'token')
local state, kind, box, inline, hidden, callback, left = j[1], j[3], j[4], j[5] == '1', j[6] == '1', j[7], j[8] == '1'
if not state then return {'notfound'} end
local function answer(head, due, gone, instead)
  return {'ok', head, due or '', gone or '', mode == 'cancel' and call('HGETALL', k) or {}, instead or ''}
end
if mode == 'finish' then
  if j[9] == token then -- the same call again, because its answer got lost
    local head = call('LINDEX', key('line', box), 0)
    if head and (call('HGET', key('job', head), 'state') ~= 'queued' or not admit(head)) then head = false end
    return answer(head or '', callback)
  end
  if final(JOBS, state) or j[2] ~= attempt then return {'fenced'} end
elseif final(JOBS, state) then
  return answer('')
elseif mode == 'cancel' and state == 'running' then
  call('HSET', k, 'cancel', '1')
  call('PUBLISH', G .. 'cancel', hint)
  return answer('')
end
if not JOBS[state][to] then return {'state', state} end

local instead = begun(id)
call('HSET', k, 'state', to, 'finished', NOW, 'token', token)
if mode == 'force' then call('HINCRBY', k, 'attempt', 1) end
if result ~= '' then call('HSET', k, 'result', result) end
if err ~= '' then call('HSET', k, 'error', err) end
if runMS ~= '' then call('HSET', k, 'rms', runMS, 'ums', uploadMS) end
stateEvent(id, int(tonumber(lastEvent) + 1) .. '+', to)

call('ZREM', P .. 'open', id)
call('ZREM', key('osj', box), id)
call('DEL', key('cp', id))
local ttl = hidden and hiddenTTL or retention
call('EXPIRE', k, ttl)
call('EXPIRE', key('ev', id), ttl)
call('EXPIRE', key('req', id), hiddenTTL)
if callback == '1' then call('ZADD', P .. 'callbacks', NOW, id) end

local head = ''
if not inline and not left then
  local first = call('LINDEX', key('line', box), 0) == id
  head = unline(box, id)
  if first and state == 'running' then free(box, true) end
  if head ~= '' and not admit(head) then head = '' end
end

-- A sandbox whose creation never came to an end is not left waiting for it.
local gone = ''
if to ~= 'completed' and (kind == 'create' or kind == 'run') then
  local s = call('HGET', key('sbx', box), 'state')
  local after = nil
  if s == 'queued' then
    after = (to == 'canceled') and 'closed' or 'failed'
  elseif s == 'starting' and mode == 'force' then
    after = 'lost'
  end
  if after and BOXES[s][after] then
    if reason ~= '' then call('HSET', key('sbx', box), 'reason', reason) end
    setBox(box, after, closedTTL, retention)
    gone = box
  end
end
return answer(head, callback, gone, instead)
