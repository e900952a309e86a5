-- Sets how many bytes an entry of the index of documents counts as stored, such as the uploads for a job before they are written: at arg.expires
-- they are removed, unless the job is accepted before. 0 bytes end the entry. Replies {'ok'}, or {'full', the quota, what is used, what
-- this call adds} in bytes.
local docs, id = P .. 'docs', arg.id
local had, want = tonumber(call('HGET', P .. 'kept', id)) or 0, tonumber(arg.bytes)
local limit, used = quota('max_stored_mb') * 1048576, storedUsed()
if limit >= 0 and want > had and used + want - had > limit then return {'full', int(limit), int(used), int(want - had)} end
setKept(id, want)
if want == 0 then
  call('ZREM', docs, id)
elseif call('ZSCORE', docs, id) ~= 'inf' then
  call('ZADD', docs, arg.expires, id)
end
return {'ok'}
