-- Stores artifacts. ARGV from 3 on, six for each: id, JSON, sandbox, job, end (microseconds), how long to keep the record (milliseconds).
for i = 3, #ARGV, 6 do
  local id, doc, box, job, expires, keep = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local seq = call('INCR', P .. 'seq')
  call('SET', key('art', id), doc, 'PX', keep)
  call('ZADD', P .. 'artexp', expires, id)
  call('ZADD', P .. 'arts', 'NX', seq, id)
  trimIndex(P .. 'arts', 'art')
  for _, index in ipairs({key('as', box), key('aj', job)}) do
    call('ZADD', index, 'NX', seq, id)
    call('PEXPIRE', index, keep)
  end
end
return {'ok'}
