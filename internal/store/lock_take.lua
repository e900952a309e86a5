-- Takes a lock, or renews it for its owner. KEYS[1] is the lock, ARGV: owner, milliseconds. Replies {'held'} if the owner has it now, or
-- {'taken'}.
local owner = call('GET', KEYS[1])
if owner and owner ~= ARGV[3] then return {'taken'} end
call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
return {'held'}
