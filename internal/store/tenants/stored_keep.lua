-- Sets how many bytes an entry of the index of documents counts as stored, such as uploads and copies of files before they are written: at arg.expires
-- they are removed, unless the job is accepted before. 0 bytes end the entry. What the documents of an accepted record count is no longer
-- changed here. Replies {'ok'}, or {'full', the quota, what is used, what
-- this call adds} in bytes.
local docs, id = DOCUMENTS, arg.id
local had, want = tonumber(call('HGET', KEPT, id)) or 0, tonumber(arg.bytes)
local at = call('ZSCORE', docs, id)
if want > 0 and at == 'inf' and string.sub(id, 1, 8) ~= 'staging/' then return {'ok'} end -- a repeated call
local full = storedFull(want - had, arg.read == '1' and READ_ROOM or 0)
if full then return full end
setKept(id, want)
if want == 0 then
  call('ZREM', docs, id)
elseif at ~= 'inf' then
  call('ZADD', docs, arg.expires, id)
end
return {'ok'}
