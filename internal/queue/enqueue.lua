-- Puts the task of a job into a queue of asynq, unless the queue has a task of that id, and wakes the queue's servers: Client.Enqueue as a
-- part of other scripts. now is in microseconds. Returns nil, or the state of the task that is there. The message has the encoding of asynq,
-- protobuf with the fields 1 type, 2 payload, 3 id, 4 queue, 5 retry and 8 timeout.
local function enqueueTask(queue, id, tenant, job, timeout, now, aside)
  local prefix = 'asynq:{' .. queue .. '}:'
  local key = prefix .. 't:' .. id
  local state = redis.call('HGET', key, 'state')
  if state == 'archived' or state == 'completed' then -- it will not run again
    redis.call('ZREM', prefix .. state, id)
    redis.call('DEL', key)
  elseif state then
    return state
  end
  local function varint(n)
    if n < 128 then return string.char(n) end
    return string.char(n % 128 + 128) .. varint(math.floor(n / 128))
  end
  local function text(field, s) return string.char(field * 8 + 2) .. varint(#s) .. s end
  local payload = '{"t":' .. cjson.encode(tenant) .. ',"id":' .. cjson.encode(job) .. (aside and ',"aside":true}' or '}')
  local message = text(1, TASK_TYPE) .. text(2, payload) .. text(3, id) .. text(4, queue) .. string.char(40) .. varint(TASK_RETRY) ..
    string.char(64) .. varint(timeout)
  redis.call('HSET', key, 'msg', message, 'state', 'pending', 'pending_since', now .. '000')
  redis.call('LPUSH', prefix .. 'pending', id)
  redis.call('SADD', 'asynq:queues', queue) -- each time: Trim may have removed it
  redis.call('PUBLISH', 'sf:wake:' .. queue, '1')
end
