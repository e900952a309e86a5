-- Where a job's task goes. ARGV: id.
local r = row(ARGV[3])
if not r then return {'notfound'} end
return {'ok', {r}}
