#!lua flags=allow-oom
-- Removes slots and consumers that nobody has used for a while.
-- KEYS     namespace
-- ARGV     keep (ms)
-- Answers  number of consumers removed
-- Promise  P7: consumers are bounded by slots and go only when this script saw nothing pending.
-- @include keys fleet
if redis.call('EXISTS', JOBS) == 0 then return 0 end
redis.call('XPENDING', JOBS, GROUP)  -- raises NOGROUP before any write
redis.call('ZREMRANGEBYSCORE', WORKERS, '-inf', '(' .. now - ARGV[1])
local removed = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', JOBS, GROUP)) do
  local fields = {}
  for i = 1, #consumer, 2 do fields[consumer[i]] = consumer[i + 1] end
  if fields.pending == 0 and not redis.call('ZSCORE', WORKERS, fields.name) then
    redis.call('XGROUP', 'DELCONSUMER', JOBS, GROUP, fields.name)
    removed = removed + 1
  end
end
return removed
