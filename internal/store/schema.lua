-- Raises the version of the schema. KEYS[1] is the version, ARGV[3] the new one; a higher one stays. Replies {'ok'}.
if tonumber(call('GET', KEYS[1]) or 0) < tonumber(ARGV[3]) then call('SET', KEYS[1], ARGV[3]) end
return {'ok'}
