-- Replaces the authorities KEYS[1] if they are still ARGV[1] ('': there are none) by ARGV[2]. Returns 1 if it did.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
