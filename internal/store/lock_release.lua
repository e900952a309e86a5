-- Releases a lock, KEYS[1], if ARGV[3] owns it. Replies {'ok'}.
if call('GET', KEYS[1]) == ARGV[3] then call('DEL', KEYS[1]) end
return {'ok'}
