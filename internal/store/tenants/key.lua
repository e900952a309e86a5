-- API keys made at run time. The version gets a new random text with every change, so that readers notice it.
-- ARGV: operation, then what it needs. Replies {'ok', …}, {'full'}, {'none'}.
local op = ARGV[3]

if op == 'create' then -- version, id, hash, record, most keys
  if call('HLEN', KEY_RECORDS) >= tonumber(ARGV[8]) then return {'full'} end
  call('HSET', KEY_RECORDS, ARGV[6], ARGV[7])
  call('HSET', KEY_IDS, ARGV[5], ARGV[6])
  call('SET', KEY_VERSION, ARGV[4])
  return {'ok'}
end

if op == 'delete' then -- version, id
  local sum = call('HGET', KEY_IDS, ARGV[5])
  if not sum then return {'none'} end
  local record = call('HGET', KEY_RECORDS, sum) or ''
  call('HDEL', KEY_RECORDS, sum)
  call('HDEL', KEY_IDS, ARGV[5])
  call('HDEL', KEY_USES, ARGV[5])
  call('SET', KEY_VERSION, ARGV[4])
  return {'ok', record}
end

if op == 'used' then -- id, seconds, id, seconds, …
  for i = 4, #ARGV, 2 do
    if call('HEXISTS', KEY_IDS, ARGV[i]) == 1 then call('HSET', KEY_USES, ARGV[i], ARGV[i + 1]) end
  end
  return {'ok'}
end

return redis.error_reply('unknown operation ' .. op)
