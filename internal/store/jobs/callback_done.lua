-- Removes a finished job from those whose callback is not delivered: its record may go before its time like others. Replies {'ok'}.
call('ZREM', CALLBACKS, arg.id)
local member = arg.id .. ' ' .. (call('HGET', jobKey(arg.id), 'size') or '')
local expires = call('ZSCORE', OWED, member)
if expires then
  call('ZREM', OWED, member)
  call('ZADD', ENDED, expires, member)
end
return {'ok'}
