-- What the dispatcher must know of jobs. ARGV: their ids. Replies {'ok', routes}, without those of jobs that are gone.
local rows = {}
for i = 3, #ARGV do table.insert(rows, route(ARGV[i])) end
return {'ok', rows}
