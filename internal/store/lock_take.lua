-- Takes a lock, or renews it for its owner. KEYS[1] is the lock, ARGV: owner, milliseconds. Returns 1 if the owner has it now.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
