#!lua flags=allow-oom
-- Queues delayed retries whose time has come.
-- KEYS     namespace
-- ARGV     limit
-- Answers  number of jobs queued, milliseconds until the next is due (-1: none waits)
-- Promise  P4 and P8: guarded by due <= TIME, so any number of time keepers may run it.
-- @include keys record queue
local ids = redis.call('ZRANGEBYSCORE', RETRIES, '-inf', now, 'LIMIT', 0, ARGV[1])
local promoted = 0
for _, id in ipairs(ids) do
  local job = read_record(id)
  if job and job.due then
    redis.call('HSET', record_key(id), 'entry', add_entry(id, job.starts + 1, job.request, job.shown))
    redis.call('HDEL', record_key(id), 'due', 'request', 'shown')
    promoted = promoted + 1
  end
  redis.call('ZREM', RETRIES, id)
end
local first = redis.call('ZRANGE', RETRIES, 0, 0, 'WITHSCORES')[2]
return {promoted, first and math.max(0, tonumber(first) - now) or -1}
