#!lua flags=allow-oom
-- Publishes how many workers there should be.
-- KEYS     namespace
-- ARGV     term, desired, reason, lag, pending, retrying ('' = unknown), min, max, observed ('1' or '0'),
--          length of the history
-- Answers  published | over
-- Promise  Only the current term writes. A held decision does not refresh the age of the last known input.
-- @include keys fleet
local desired, reason, observed = ARGV[2], ARGV[3], ARGV[9]
local before = redis.call('HMGET', SCALE, 'term', 'desired')
if before[1] ~= ARGV[1] then return 'over' end
redis.call('HSET', SCALE, 'desired', desired, 'reason', reason, 'lag', ARGV[4], 'pending', ARGV[5],
  'retrying', ARGV[6], 'min', ARGV[7], 'max', ARGV[8], 'observed', observed)
if observed == '1' then redis.call('HSET', SCALE, 'updated', now) end
if before[2] ~= desired then
  redis.call('XADD', SCALE_LOG, 'MAXLEN', '~', ARGV[10], '*', 'desired', desired, 'reason', reason)
end
return 'published'
