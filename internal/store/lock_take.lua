-- Takes a lock or renews it. KEYS[1] the lock, ARGV: owner, milliseconds.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
