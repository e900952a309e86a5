-- Sets how many bytes a tenant keeps in the object store under a prefix, or adds to them, before they are written. arg.id is the prefix's entry
-- in the index of documents: what is charged for a record that does not exist, and for uploads, is removed at arg.expires, unless a job that
-- needs it is accepted before. 0 bytes end the entry. Replies {'ok'}, or {'full', the quota, what is used, what this call adds} in bytes.
local docs, id = P .. 'docs', arg.id
local had, want = tonumber(call('HGET', P .. 'kept', id)) or 0, tonumber(arg.bytes)
if arg.add == '1' then want = math.max(had + want, 0) end
local limit, used = quota('max_stored_mb') * 1048576, storedUsed()
if limit >= 0 and want > had and used + want - had > limit then return {'full', int(limit), int(used), int(want - had)} end
setKept(id, want)
if want == 0 and arg.add ~= '1' then
  call('ZREM', docs, id)
elseif want > had or arg.add ~= '1' then
  local job = key('job', id)
  local state = call('HGET', job, 'state')
  if state and not final(JOBS, state) then
    if call('HSETNX', job, 'docs', '1') == 1 then call('ZADD', docs, 'inf', id) end
  elseif not state and call('ZSCORE', docs, id) ~= 'inf' or not call('ZSCORE', docs, id) then
    call('ZADD', docs, arg.expires, id)
  end
end
return {'ok'}
