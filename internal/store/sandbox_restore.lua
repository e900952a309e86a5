-- Writes the record of a sandbox that outlived its record. ARGV: id, doc, used, expires, idle, node, container.
local id = ARGV[3]
local k = key('sbx', id)
if call('EXISTS', k) == 1 then return {'there'} end
local seq = call('INCR', P .. 'seq')
call('HSET', k, 'doc', ARGV[4], 'state', 'ready', 'ready', NOW, 'used', ARGV[5], 'expires', ARGV[6], 'idle', ARGV[7], 'node', ARGV[8],
  'container', ARGV[9], 'seq', seq)
call('ZADD', P .. 'boxes', seq, id)
call('ZADD', P .. 'openboxes', seq, id)
due(id)
return {'ok'}
