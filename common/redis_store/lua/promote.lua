#!lua flags=allow-oom
-- Queues delayed retries whose time has come.
-- KEYS     namespace
-- ARGV     1-3 see ending, limit
-- Answers  number of jobs queued, milliseconds until the next is due (-1: none waits)
-- Promise  P4 and P8: guarded by due <= TIME, so any number of time keepers may run it. P5: a broken one does
--          not stop the others.
-- @include keys record events queue owners ending due
local ids = redis.call('ZRANGEBYSCORE', RETRIES, '-inf', now, 'LIMIT', 0, ARGV[4])
local promoted = 0

local function promote(job)
  if not job.request then return bury(job, nil, 'lost', GONE) end
  redis.call('HSET', record_key(job.id), 'entry', add_entry(job.id, job.starts + 1, job.request, job.shown))
  redis.call('HDEL', record_key(job.id), 'due', 'request', 'shown')
  redis.call('ZREM', RETRIES, job.id)
  promoted = promoted + 1
end

for _, id in ipairs(ids) do
  local job = read_record(id)
  if not job or not job.due then
    redis.call('ZREM', RETRIES, id)
  elseif job.due > now then
    redis.call('ZADD', RETRIES, job.due, id)
  else
    promote(job)
  end
end
return {promoted, next_in(RETRIES)}
