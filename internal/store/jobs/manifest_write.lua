-- Replaces a job's manifest, if it is still the version that the caller has read, and keeps the tenant's counts exact: what is added frees the
-- job's reservation. A manifest without artifacts is removed, and the record of a job with fewer artifacts than before says so. The job
-- must run under the attempt ('0': any).
-- max_memory is what the unfinished jobs, open sandboxes and manifests of the tenant may have afterwards ('0': no bound).
-- Replies {'ok'}, {'changed'}, {'fenced'}, {'notfound'}, {'memory'}.
local k, stored, job = manifestKey(arg.job), STORED, jobKey(arg.job)
if arg.attempt ~= '0' then
  local j = call('HMGET', job, 'state', 'attempt')
  if not j[1] then return {'notfound'} end
  if j[1] ~= 'running' or j[2] ~= arg.attempt then return {'fenced'} end
end
local old = call('HMGET', k, 'version', 'count', 'bytes', 'sandbox', 'place')
if (old[1] or '') ~= arg.read then return {'changed'} end
local count, box = tonumber(arg.count), old[4] or arg.sandbox
local held = old[1] and call('HSTRLEN', k, 'doc') + MANIFEST_EXTRA or 0
local holds = count > 0 and #arg.doc + MANIFEST_EXTRA or 0
if arg.max_memory ~= '0' and holds > held then
  local used = tonumber(call('HGET', MEMORY, 'unfinished') or 0) + tonumber(call('HGET', stored, 'manifests') or 0)
  if used + holds - held > tonumber(arg.max_memory) then return {'memory'} end
end
local added, more = tonumber(arg.bytes) - (tonumber(old[3]) or 0), count - (tonumber(old[2]) or 0)
local changed = {stored}
if old[5] and tonumber(old[5]) <= (tonumber(call('HGET', WALK, 'place')) or 0) then changed[2] = WALK end
for _, counts in ipairs(changed) do
  call('HINCRBY', counts, 'artifacts', int(more))
  call('HINCRBY', counts, 'bytes', int(added))
  call('HINCRBY', counts, 'manifests', int(holds - held))
end
local reserved = math.min(tonumber(call('HGET', job, 'reserved')) or 0, added + more * ARTIFACT_BYTES)
if reserved > 0 then
  call('HINCRBY', job, 'reserved', int(-reserved))
  call('HINCRBY', stored, 'reserved', int(-reserved))
end
if more < 0 and call('EXISTS', job) == 1 then call('HSET', job, 'less', '1') end
if count == 0 then
  call('DEL', k)
  for _, index in ipairs({MANIFESTS, MANIFEST_ENDS, manifestsOfKey(box)}) do call('ZREM', index, arg.job) end
  return {'ok'}
end
local place = old[5]
if not place then
  place = call('INCR', SEQUENCE)
  call('ZADD', MANIFESTS, place, arg.job)
  call('ZADD', manifestsOfKey(box), place, arg.job)
end
call('HSET', k, 'version', arg.version, 'count', arg.count, 'bytes', arg.bytes, 'sandbox', box, 'place', place, 'doc', arg.doc)
call('ZADD', MANIFEST_ENDS, arg.expires, arg.job)
return {'ok'}
