-- Accepts a job: checks idempotency, the sandbox's state and the limits, then writes record, request, first event, indexes and FIFO, and
-- enqueues the job if it is runnable. Replies {'ok', '1' if the job existed before, job (empty: this call has made it), sandbox}, or why it was
-- refused: {'notfound'}, {'state', state, its reason}, {'early', state}, {'reused', job}, {'quota', name, its value, used, needed}, {'deep', queue},
-- {'waiting'}, {'stops'}, {'memory', bytes of unfinished jobs and open sandboxes, bytes needed}.
local id, kind, box = arg.id, arg.kind, arg.sandbox
local new, inline, background = arg.new == '1', arg.inline == '1', arg.background == '1'

local function answer(job, sandbox, existing)
  return {'ok', existing, call('HGETALL', jobKey(job)), call('HGETALL', sandboxKey(sandbox))}
end

-- A retry of a call whose answer was lost: the first one did all.
if call('EXISTS', jobKey(id)) == 1 then return answer(id, box, '') end

if arg.idempotency ~= '' then
  local earlier = call('HMGET', idempotencyKey(arg.idempotency), 'job', 'fingerprint')
  local its = earlier[1] and call('HGET', jobKey(earlier[1]), 'sandbox')
  if its then
    if earlier[2] ~= arg.fingerprint then return {'reused', earlier[1]} end
    return answer(earlier[1], its, '1')
  end
end

-- A job has one idempotency key, which is forgotten with it: a caller whose interrupt is answered by another's job sends its own again in vain.
local function remember(job)
  if arg.idempotency == '' or call('HSETNX', jobKey(job), 'idem', arg.idempotency) == 0 then return end
  call('HSET', idempotencyKey(arg.idempotency), 'job', job, 'fingerprint', arg.fingerprint)
  call('EXPIRE', idempotencyKey(arg.idempotency), arg.idempotency_ttl)
end

local boxKey, fifo = sandboxKey(box), fifoKey(box)
if not new then
  local s = call('HMGET', boxKey, 'state', 'close', 'reason')
  local state = s[1]
  if not state then return {'notfound'} end
  if kind == 'close' then
    if not SANDBOXES[state]['closing'] then
      if s[2] and (state == 'closing' or state == 'closed' or state == 'expired') and call('EXISTS', jobKey(s[2])) == 1 then
        return answer(s[2], box, '1')
      end
      return {'state', state, s[3] or ''}
    end
  elseif not ACCEPTS[state] then
    return {'state', state, s[3] or ''}
  elseif inline and state ~= 'ready' and state ~= 'busy' then
    return {'early', state} -- it would not wait in the FIFO for the sandbox to start
  end
end

-- No quota bounds interrupts and restarts, so a sandbox has few. One that no worker has begun answers for all like it: it stops what runs then. One
-- that is running may have missed what has begun since, so there may be another one, and no third.
if arg.stop ~= '' then
  local all, others, waiting, running = call('HGETALL', stopsKey(box)), 0, nil, {}
  for i = 1, #all, 2 do
    local j = call('HMGET', jobKey(all[i]), 'state', 'seq')
    if not j[1] or final(JOBS, j[1]) then
      call('HDEL', stopsKey(box), all[i]) -- a program of the release before has ended it
    elseif all[i + 1] ~= arg.stop then
      others = others + 1
    elseif j[1] == 'queued' then
      waiting = all[i]
    else
      table.insert(running, {tonumber(j[2]), all[i]})
    end
  end
  table.sort(running, function(a, b) return a[1] < b[1] end)
  local existing = waiting or running[2] and running[#running][2]
  if existing then
    remember(existing)
    return answer(existing, box, '1')
  end
  if others + #running >= STOPS then return {'stops'} end
end

-- The refusal by a quota that has not this much left, or nil.
local function exceeds(name, used, needed)
  local most = quota(name)
  if most < 0 or used + needed <= most + 0.0001 then return nil end -- cores are fractions
  return {'quota', name, tostring(most), tostring(used), tostring(needed)}
end

if not urgent(kind) then
  local refused = exceeds('max_queued', call('ZCARD', OPEN_JOBS), 1)
  if not refused and new then
    local use = call('HMGET', USE, 'mem', 'mcpu', 'gpus')
    refused = exceeds('max_sandboxes', call('ZCARD', OPEN_SANDBOXES), 1)
      or exceeds('max_memory_mb', tonumber(use[1] or 0), tonumber(arg.memory))
      or exceeds('max_cpus', tonumber(use[2] or 0) / 1000, tonumber(arg.millicores) / 1000)
      or arg.gpus ~= '0' and exceeds('max_gpus', tonumber(use[3] or 0), tonumber(arg.gpus))
  end
  if refused then return refused end
end
if not urgent(kind) and (inline or new or call('EXISTS', fifo) == 0) then
  local share = shareOf(kind, arg.queue, inline, box)
  if call('ZCARD', slotsKey(share)) + call('ZCARD', parkedKey(share)) >= DEPTH then return {'deep', queueOf(arg.queue, inline, box)} end
end
if not inline and not new then
  local waiting = call('LLEN', fifo)
  local head = call('LINDEX', fifo, 0)
  if head and call('HGET', jobKey(head), 'state') == 'running' then waiting = waiting - 1 end
  if waiting >= tonumber(arg.max_waiting) then return {'waiting'} end
end

local size = JOB_EXTRA + #arg.doc + #arg.shown + #arg.request
local installs = arg.packages ~= '[]'
local needed = size + (installs and #arg.packages or 0) + (new and SANDBOX_EXTRA + #arg.sandbox_doc + #arg.secrets or 0)
if not urgent(kind) and arg.max_memory ~= '0' then
  local used = tonumber(call('HGET', MEMORY, 'unfinished') or 0) + tonumber(call('HGET', STORED, 'manifests') or 0)
  if used + needed > tonumber(arg.max_memory) then return {'memory', int(used), int(needed)} end
end

local seq = call('INCR', SEQUENCE)
call('HSET', jobKey(id), 'doc', arg.doc, 'kind', kind, 'state', 'queued', 'attempt', '0', 'sandbox', box, 'created', arg.created,
  'queue', arg.queue, 'timeout', arg.timeout, 'inline', arg.inline, 'hidden', arg.hidden, 'cb', arg.callback, 'bg', arg.background,
  'seq', seq)
if arg.shown ~= '' then call('HSET', jobKey(id), 'shown', arg.shown) end
if arg.cell ~= '' then call('HSET', jobKey(id), 'cell', arg.cell) end
if arg.documents ~= '' then
  call('HSET', jobKey(id), 'docs', arg.documents)
  if arg.request_size ~= '0' then call('HSET', jobKey(id), 'reqsize', arg.request_size) end
  call('ZADD', DOCUMENTS, 'inf', id)
end
call('ZADD', DOCUMENTS, 'XX', 'inf', 'staging/' .. id) -- its uploads are kept until it ends
chargeJob(id, size)
call('SET', requestKey(id), arg.request)
appendStateEvent(id, '0-1', 'queued')
call('ZADD', OPEN_JOBS, seq, id)
call('ZADD', unfinishedKey(box), seq, id)
if arg.hidden ~= '1' then
  call('ZADD', JOB_LIST, seq, id)
  call('ZADD', jobsOfKey(box), seq, id)
  trimIndex(JOB_LIST, jobKey)
  trimIndex(jobsOfKey(box), jobKey)
end
remember(id)
if arg.stop ~= '' then call('HSET', stopsKey(box), id, arg.stop) end

-- Remembers which job installs which package last. Of an absurd number those of earlier jobs are forgotten: they are looked up in the sandbox.
if installs then
  local packages, names, length = packagesKey(box), cjson.decode(arg.packages), 0
  for _, name in ipairs(names) do call('HSET', packages, name, id) end
  for _, name in ipairs(call('HKEYS', packages)) do length = length + #name + #id end
  if length > tonumber(arg.max_packages) then
    call('DEL', packages)
    length = 0
    for _, name in ipairs(names) do length = length + call('HSET', packages, name, id) * (#name + #id) end
  end
  call('HSET', boxKey, 'pkgsize', int(length))
end

if new then
  call('HSET', boxKey, 'doc', arg.sandbox_doc, 'state', 'queued', 'used', arg.created, 'expires', arg.expires, 'idle', arg.idle, 'seq', seq)
  if arg.node ~= '' then setNode(box, arg.node) end
  if arg.secrets ~= '' then call('SET', secretsKey(box), arg.secrets) end
  if arg.sandbox_spilled == '1' then call('ZADD', DOCUMENTS, 'inf', box) end
  call('ZADD', SANDBOX_LIST, seq, box)
  call('ZADD', OPEN_SANDBOXES, seq, box)
  chargeSandbox(box, arg.memory, arg.millicores, arg.gpus)
  trimIndex(SANDBOX_LIST, sandboxKey)
  updateDeadline(box)
end
if new or installs then chargeRecord(box) end
if kind == 'close' then
  call('HSET', boxKey, 'state', 'closing', 'close', id, 'expired', arg.expired)
  if arg.reason ~= '' then call('HSET', boxKey, 'reason', arg.reason) end
  indexClosing(box)
  updateDeadline(box)
end
if not inline then
  call('RPUSH', fifo, id)
  if not new and not background then
    call('HSET', boxKey, 'used', NOW)
    updateDeadline(box)
  end
end
if inline or call('LINDEX', fifo, 0) == id then makeReady(id) end
return {'ok', '', {}, call('HGETALL', boxKey)}
