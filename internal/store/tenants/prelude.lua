-- What scripts share that count what a tenant uses.

local function addUse(sign, mem, mcpu, gpus)
  for name, n in pairs({mem = mem, mcpu = mcpu, gpus = gpus}) do
    if n ~= '0' then call('HINCRBY', USE, name, sign .. n) end
  end
end

-- Bytes that count against max_stored_mb: those of artifacts and ARTIFACT_BYTES for each, what is reserved, and what is kept.
local function storedUsed()
  local s = call('HMGET', STORED, 'bytes', 'reserved', 'kept', 'artifacts')
  return (tonumber(s[1]) or 0) + (tonumber(s[2]) or 0) + (tonumber(s[3]) or 0) + (tonumber(s[4]) or 0) * ARTIFACT_BYTES
end

-- A repair of what is stored goes through the records page by page. WALK has its sums and its places, WALKED the documents that it has counted.
-- What changes behind it changes its sum as well, so that the two agree at its end, whatever happened meanwhile.
-- Sets what counts for an entry of the index of documents. The hash 'kept' remembers it, so that it is given back once.
local function setKept(id, bytes)
  local had = tonumber(call('HGET', KEPT, id)) or 0
  if call('EXISTS', WALK) == 1 then
    local counted = call('SADD', WALKED, id) == 0 and had or 0
    call('HINCRBY', WALK, 'kept', int(bytes - counted))
  end
  if bytes ~= had then call('HINCRBY', STORED, 'kept', int(bytes - had)) end
  if bytes > 0 then call('HSET', KEPT, id, int(bytes)) else call('HDEL', KEPT, id) end
end

-- Counts bytes more (or less, if negative) for an entry of the index of documents.
local function addKept(id, bytes)
  setKept(id, math.max((tonumber(call('HGET', KEPT, id)) or 0) + bytes, 0))
end

-- The refusal of bytes that are more than the tenant may store, or nil. freed: bytes that the same step gives back.
local function storedFull(bytes, freed)
  if bytes <= 0 then return nil end
  local limit, used = quota('max_stored_mb') * 1048576, storedUsed()
  if limit < 0 or used - freed + bytes <= limit then return nil end
  return {'full', int(limit), int(used), int(bytes)}
end

-- By how many bytes reads may exceed max_stored_mb, with their results, which are kept for minutes, and with the files that their callers are
-- reading: who must make room reads first.
local READ_ROOM = 67108864

-- What the jobs and sandboxes of the tenant have in Redis, in bytes: the fields 'unfinished', which has the open sandboxes as well, and 'finished',
-- which has those that have ended. Of each job the strings in its record, its request and its events count, and JOB_EXTRA for its keys and its
-- entries of indexes. ENDED has a member for each finished job, its id and what it counts, by the time at which its record expires; for a
-- sandbox that has ended, 'sbx:' is before the id. NEEDED has such members of sandboxes whose container may still run: nothing may remove their
-- records before they expire, so they count as unfinished. OWED has those of finished jobs whose callback was not delivered when the farm made
-- room: they are not in front of what may go. Beside them the manifests count, in the field 'manifests' of what is stored: their documents and
-- MANIFEST_EXTRA for each.
local JOB_EXTRA, MANIFEST_EXTRA = 6144, 1024

-- Gives back what a finished job or a sandbox that has ended counts, once.
local function refundJob(member)
  for index, field in pairs({[ENDED] = 'finished', [OWED] = 'finished', [NEEDED] = 'unfinished'}) do
    if call('ZREM', index, member) == 1 then call('HINCRBY', MEMORY, field, '-' .. string.match(member, ' (%d+)$')) end
  end
end

-- Gives back what expired records of an index counted. Returns of how many.
local function refundExpired(index, most)
  local found = call('ZRANGEBYSCORE', index, '-inf', NOW, 'LIMIT', 0, most)
  for _, member in ipairs(found) do refundJob(member) end
  return #found
end
