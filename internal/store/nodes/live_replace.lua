-- Replaces the authorities if they are still ARGV[3] ('': there are none) by ARGV[4]. Replies {'ok'} or {'changed'}.
if (call('GET', AUTHORITIES) or '') ~= ARGV[3] then return {'changed'} end
call('SET', AUTHORITIES, ARGV[4])
return {'ok'}
