-- Raises the version of the schema. KEYS[1] is the version, ARGV[1] the new one; a higher one stays.
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1
