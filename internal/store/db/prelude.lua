-- What scripts share. JOBS and SANDBOXES (transition tables), ACCEPTS (sandbox states that accept work), SHARE and DEPTH (limits of a queue), STOPS,
-- ARTIFACT_BYTES and QUOTAS (of tenants without their own) are generated from package farm, and the names of keys from keys.go.

-- A flag is '1' or ''.
local function flag(b) return b and '1' or '' end

-- A quota of the tenant; -1: no bound.
local function quota(name) return tonumber(call('HGET', OWN_QUOTAS, name) or QUOTAS[name]) end

-- Lua's own format loses digits of numbers over 1e14.
local function int(n) return string.format('%.0f', n + 0) end -- without the sign of -0, which Redis refuses

local function final(transitions, state) return next(transitions[state]) == nil end

-- Has the documents of a record removed after it expires: an hour later, since the clocks of the processes differ, or as much later as it
-- was kept, if that is less.
local function expireDocuments(id, ttl)
  local kept = tonumber(ttl)
  call('ZADD', DOCUMENTS, int(tonumber(NOW) + (kept + math.min(kept, 3600)) * 1000000), id)
end

-- Removes the oldest two entries of an index if their records have expired. Called for each new entry, this keeps the index bounded.
local function trimIndex(index, keyOf)
  for _, id in ipairs(call('ZRANGE', index, 0, 1)) do
    if call('EXISTS', keyOf(id)) == 0 then call('ZREM', index, id) end
  end
end
