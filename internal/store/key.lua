-- API keys made at run time. KEYS[1] is the prefix of their keys: docs is a hash of the record of each key by the SHA-256 of the key, ids
-- of that hash by the key's id, used of the time of the last use (seconds) by id. version gets a new random text with every change, so that
-- readers notice it. ARGV: operation, then what it needs. Replies {'ok', …}, {'full'}, {'none'}.
local P, op = KEYS[1], ARGV[1]
local call = redis.call

if op == 'create' then -- version, id, hash, record, most keys
  if call('HLEN', P .. 'docs') >= tonumber(ARGV[6]) then return {'full'} end
  call('HSET', P .. 'docs', ARGV[4], ARGV[5])
  call('HSET', P .. 'ids', ARGV[3], ARGV[4])
  call('SET', P .. 'version', ARGV[2])
  return {'ok'}
end

if op == 'delete' then -- version, id
  local sum = call('HGET', P .. 'ids', ARGV[3])
  if not sum then return {'none'} end
  local record = call('HGET', P .. 'docs', sum) or ''
  call('HDEL', P .. 'docs', sum)
  call('HDEL', P .. 'ids', ARGV[3])
  call('HDEL', P .. 'used', ARGV[3])
  call('SET', P .. 'version', ARGV[2])
  return {'ok', record}
end

if op == 'used' then -- id, seconds, id, seconds, …
  for i = 2, #ARGV, 2 do
    if call('HEXISTS', P .. 'ids', ARGV[i]) == 1 then call('HSET', P .. 'used', ARGV[i], ARGV[i + 1]) end
  end
  return {'ok'}
end

return redis.error_reply('unknown operation ' .. op)
