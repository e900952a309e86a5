-- Takes a job in: idempotency, the sandbox's state, limits, then record, request, first event, indexes and line.
local id, kind, box, new, inline, hidden = ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1', ARGV[7] == '1', ARGV[8] == '1'
local callback, background, created, doc, request = ARGV[9], ARGV[10] == '1', ARGV[11], ARGV[12], ARGV[13]
local idem, fingerprint, idemTTL = ARGV[14], ARGV[15], ARGV[16]
local maxWaiting, maxQueued = tonumber(ARGV[17]), tonumber(ARGV[18])
local boxDoc, expires, idle = ARGV[19], ARGV[20], ARGV[21]
local expired, reason, need, queue, timeout, node = ARGV[22], ARGV[23], ARGV[24], ARGV[25], ARGV[26], ARGV[27]
-- From ARGV[28] on: names of packages.

local function answer(job, existing)
  local f = call('HMGET', key('job', job), 'sandbox', 'state', 'inline')
  local ready = f[2] == 'queued' and (f[3] == '1' or call('LINDEX', key('line', f[1]), 0) == job) and admit(job)
  return {'ok', existing, ready and '1' or '', call('HGETALL', key('job', job)), call('HGETALL', key('sbx', f[1]))}
end

-- The same call again, because its answer got lost.
if call('EXISTS', key('job', id)) == 1 then return answer(id, '') end

if idem ~= '' then
  local held = call('HMGET', key('idem', idem), 'job', 'fingerprint')
  if held[1] and call('EXISTS', key('job', held[1])) == 1 then
    if held[2] ~= fingerprint then return {'reused', held[1]} end
    return answer(held[1], '1')
  end
end

local boxKey, line = key('sbx', box), key('line', box)
if not new then
  local s = call('HMGET', boxKey, 'state', 'close')
  local state = s[1]
  if not state then return {'notfound'} end
  if need == 'close' then
    if not BOXES[state]['closing'] then
      if s[2] and (state == 'closing' or state == 'closed' or state == 'expired') and call('EXISTS', key('job', s[2])) == 1 then
        return answer(s[2], '1')
      end
      return {'state', state}
    end
  elseif not ACCEPTS[state] then
    return {'state', state}
  elseif need == 'ready' and state ~= 'ready' and state ~= 'busy' then
    return {'early', state}
  end
end

if not urgent(kind) and call('ZCARD', P .. 'open') >= maxQueued then
  return {'full'}
end
if not urgent(kind) and (inline or new or call('EXISTS', line) == 0) then
  local q = queueOf(queue, inline, box)
  if call('ZCARD', key('out', q)) + call('ZCARD', key('held', q)) >= DEPTH then return {'deep', q} end
end
if not inline and not new then
  local waiting = call('LLEN', line)
  local head = call('LINDEX', line, 0)
  if head and call('HGET', key('job', head), 'state') == 'running' then waiting = waiting - 1 end
  if waiting >= maxWaiting then return {'waiting'} end
end

local seq = call('INCR', P .. 'seq')
call('HSET', key('job', id), 'doc', doc, 'kind', kind, 'state', 'queued', 'attempt', '0', 'sandbox', box, 'created', created,
  'queue', queue, 'timeout', timeout, 'inline', inline and '1' or '', 'hidden', hidden and '1' or '', 'cb', callback,
  'bg', background and '1' or '', 'seq', seq)
call('SET', key('req', id), request)
stateEvent(id, '0-1', 'queued')
call('ZADD', P .. 'open', seq, id)
call('ZADD', key('osj', box), seq, id)
if not hidden then
  call('ZADD', P .. 'jobs', seq, id)
  call('ZADD', key('sj', box), seq, id)
  trim(P .. 'jobs', 'job')
  trim(key('sj', box), 'job')
end
if idem ~= '' then
  call('HSET', key('idem', idem), 'job', id, 'fingerprint', fingerprint)
  call('EXPIRE', key('idem', idem), idemTTL)
end

-- Who installs which package last. So many that nobody can have meant them are forgotten: they are looked up in the sandbox.
local packages = key('pkg', box)
for i = 28, #ARGV do call('HSET', packages, ARGV[i], id) end
if #ARGV > 27 and call('HLEN', packages) > 10000 then call('DEL', packages) end

if new then
  call('HSET', boxKey, 'doc', boxDoc, 'state', 'queued', 'used', created, 'expires', expires, 'idle', idle, 'seq', seq)
  if node ~= '' then call('HSET', boxKey, 'node', node) end
  call('ZADD', P .. 'boxes', seq, box)
  call('ZADD', P .. 'openboxes', seq, box)
  trim(P .. 'boxes', 'sbx')
  due(box)
end
if need == 'close' then
  call('HSET', boxKey, 'state', 'closing', 'close', id, 'expired', expired)
  if reason ~= '' then call('HSET', boxKey, 'reason', reason) end
  due(box)
end
if not inline then
  call('RPUSH', line, id)
  if not new and not background then
    call('HSET', boxKey, 'used', NOW)
    due(box)
  end
end
return answer(id, '')
