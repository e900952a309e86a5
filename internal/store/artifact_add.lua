-- Keeps artifacts. ARGV: for each id, JSON, sandbox, job, end in microseconds, milliseconds that its record is kept.
for i = 3, #ARGV, 6 do
  local id, doc, box, job, ends, keep = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local seq = call('INCR', P .. 'seq')
  call('SET', key('art', id), doc, 'PX', keep)
  call('ZADD', P .. 'artexp', ends, id)
  call('ZADD', P .. 'arts', 'NX', seq, id)
  trim(P .. 'arts', 'art')
  for _, index in ipairs({key('as', box), key('aj', job)}) do
    call('ZADD', index, 'NX', seq, id)
    call('PEXPIRE', index, keep)
  end
end
return {'ok'}
