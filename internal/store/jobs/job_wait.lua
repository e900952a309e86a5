-- What a queued job waits for; it only reads, and looks at the first MAX_PLACE jobs of a FIFO: lists ask for each of their jobs. ARGV: id.
-- Replies {'notfound'} if the job is gone or does not wait, else {'ok', names and values that alternate}, see Wait.
local id, MAX_PLACE = ARGV[3], 1000
local j = call('HMGET', jobKey(id), 'state', 'kind', 'sandbox', 'queue', 'inline', 'left', 'aq')
if j[1] ~= 'queued' then return {'notfound'} end
local box, inline, share = j[3], j[5] == '1', j[7]
local position, before, head = 1, 0, {}
if not inline and j[6] ~= '1' then
  local at = call('LPOS', fifoKey(box), id, 'MAXLEN', MAX_PLACE)
  if not at and call('LLEN', fifoKey(box)) > MAX_PLACE then at = MAX_PLACE end
  before = at or 0
  position = at and at + 1 or 0
  if before > 0 then
    head[1] = call('LINDEX', fifoKey(box), 0)
    head[2], head[3] = unpack(call('HMGET', jobKey(head[1]), 'kind', 'state'))
    if head[3] == 'running' and at < MAX_PLACE then position = position - 1 end -- it no longer waits
  end
end
local s = call('HMGET', sandboxKey(box), 'node', 'state')
return {'ok', {
  'position', int(position), 'before', int(before), 'head', head[1] or '', 'head_kind', head[2] or '', 'head_state', head[3] or '',
  'parked', flag(share and call('ZSCORE', parkedKey(share), id)), 'slots', share and int(call('ZCARD', slotsKey(share))) or '0',
  'running', int(call('SCARD', ACTIVE)), 'max_running', tostring(quota('max_running')),
  'queue', queueOf(j[4], inline, box), 'node', s[1] or '', 'sandbox_state', s[2] or '',
}}
