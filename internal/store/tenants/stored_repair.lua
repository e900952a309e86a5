-- Compares what is counted as stored with the manifests, the unfinished jobs, the hibernated sandboxes and the index of documents of a tenant,
-- and corrects it. Looks at up to arg.most manifests and about as many documents. With anew it begins a walk: one that was interrupted may have
-- the cursor of another run of Redis. Replies {'more'} until it has seen all, then {'ok', by how many bytes, artifacts, reserved bytes, kept
-- bytes, and bytes of manifests the counts were too high}.
local stored, most = STORED, tonumber(arg.most)
if arg.anew == '1' then call('UNLINK', WALK, WALKED) end
local w = call('HMGET', WALK, 'place', 'cursor')
local place, cursor = w[1] or '0', w[2] or '0'

local page = call('ZRANGEBYSCORE', MANIFESTS, '(' .. place, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local bytes, artifacts, manifests = 0, 0, 0
for i = 1, #page, 2 do
  local job = page[i]
  local m = call('HMGET', manifestKey(job), 'bytes', 'count')
  if m[1] then
    bytes, artifacts = bytes + tonumber(m[1]), artifacts + tonumber(m[2])
    manifests = manifests + call('HSTRLEN', manifestKey(job), 'doc') + MANIFEST_EXTRA
  else
    call('ZREM', MANIFESTS, job)
    call('ZREM', MANIFEST_ENDS, job)
  end
  place = page[i + 1]
end
call('HINCRBY', WALK, 'bytes', int(bytes))
call('HINCRBY', WALK, 'artifacts', int(artifacts))
call('HINCRBY', WALK, 'manifests', int(manifests))
call('HSET', WALK, 'place', place)
if #page == 2 * most then return {'more'} end

-- HSCAN may give an entry twice.
local scan, kept = call('HSCAN', KEPT, cursor, 'COUNT', most), 0
for i = 1, #scan[2], 2 do
  local id = scan[2][i]
  if call('SADD', WALKED, id) == 1 then
    local at = call('ZSCORE', DOCUMENTS, id)
    if at then
      kept = kept + tonumber(scan[2][i + 1])
      local job = string.match(id, '^staging/(.+)$')
      if job and at == 'inf' and not call('ZSCORE', OPEN_JOBS, job) then call('ZADD', DOCUMENTS, NOW, id) end
    else
      call('HDEL', KEPT, id)
    end
  end
end
call('HINCRBY', WALK, 'kept', int(kept))
call('HSET', WALK, 'cursor', scan[1])
if scan[1] ~= '0' then return {'more'} end

-- Unfinished jobs and open sandboxes are few, and change in more ways: they are counted at once, unless they are too many for that.
local few = call('ZCARD', OPEN_JOBS) + call('ZCARD', OPEN_SANDBOXES) <= tonumber(arg.at_once)
local reserved = few and 0 or tonumber(call('HGET', stored, 'reserved')) or 0
if few then
  for _, job in ipairs(call('ZRANGE', OPEN_JOBS, 0, -1)) do
    reserved = reserved + (tonumber(call('HGET', jobKey(job), 'reserved')) or 0)
  end
  for _, box in ipairs(call('ZRANGE', OPEN_SANDBOXES, 0, -1)) do
    reserved = reserved + (tonumber(call('HGET', sandboxKey(box), 'frozen')) or 0)
  end
end
call('HSET', WALK, 'reserved', int(reserved))

local reply = {'ok'}
for _, name in ipairs({'bytes', 'artifacts', 'reserved', 'kept', 'manifests'}) do
  local truth = tonumber(call('HGET', WALK, name))
  local drift = (tonumber(call('HGET', stored, name)) or 0) - truth
  if drift ~= 0 then call('HSET', stored, name, int(truth)) end
  table.insert(reply, int(drift))
end
call('UNLINK', WALK, WALKED)
return reply
