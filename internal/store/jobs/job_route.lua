-- What the dispatcher must know of a job. ARGV: id. Replies {'ok', route}, {'notfound'}.
local r = route(ARGV[3])
if not r then return {'notfound'} end
return {'ok', r}
