-- Takes a running job out of its sandbox's FIFO; it runs on. ARGV: id, attempt. Replies {'ok'}, {'fenced'}, {'notfound'}.
local id, attempt = ARGV[3], ARGV[4]
local k = jobKey(id)
local j = call('HMGET', k, 'state', 'attempt', 'sandbox', 'inline', 'left')
local box, inline, outsideFIFO = j[3], j[4] == '1', j[5] == '1'
if not j[1] then return {'notfound'} end
if j[1] ~= 'running' or j[2] ~= attempt then return {'fenced'} end
if inline or outsideFIFO then return {'ok'} end
call('HSET', k, 'left', '1')
local head = leaveFIFO(box, id)
freeSandbox(box, false)
if head ~= '' then makeReady(head) end
return {'ok'}
