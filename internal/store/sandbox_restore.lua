-- Writes the record of a sandbox whose container outlived it. Replies {'ok'}, or {'exists'} if there is a record.
local k = key('sbx', arg.id)
if call('EXISTS', k) == 1 then return {'exists'} end
local seq = call('INCR', P .. 'seq')
call('HSET', k, 'doc', arg.doc, 'state', 'ready', 'ready', NOW, 'used', arg.used, 'expires', arg.expires, 'idle', arg.idle,
  'container', arg.container, 'gen', arg.generation, 'seq', seq)
setNode(arg.id, arg.node)
call('ZADD', P .. 'boxes', seq, arg.id)
call('ZADD', P .. 'openboxes', seq, arg.id)
chargeSandbox(arg.id, arg.memory, arg.millicores, arg.gpus)
if arg.spilled == '1' then call('ZADD', P .. 'docs', 'inf', arg.id) end
updateDeadline(arg.id)
return {'ok'}
