-- Gives the open sandboxes that have left a node a generation: the release before noted up to which attempt their containers were void.
-- That note goes: a worker of that release would take containers of this one for void, since they do not say their attempt.
-- ARGV: places behind which to begin and how many to look at. Replies {'ok', last place looked at or ''}.
local found = call('ZRANGEBYSCORE', OPEN_SANDBOXES, '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
for i = 1, #found, 2 do
  local s = call('HMGET', sandboxKey(found[i]), 'void', 'gen')
  if (tonumber(s[1]) or 0) > 0 then
    if not s[2] then call('HSET', sandboxKey(found[i]), 'gen', '2') end
    call('HDEL', sandboxKey(found[i]), 'void')
  end
end
return {'ok', found[#found] or ''}
