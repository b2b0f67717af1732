#!lua flags=allow-oom
-- Makes the caller the leading scaler, or keeps it so.
-- KEYS     namespace
-- ARGV     candidate, ttl (ms)
-- Answers  the term's number | -1 another leads
-- Promise  P4: the leader gets its own term again. The term fences publish_scale.
-- @include keys fleet
local leads = redis.call('HMGET', SCALE, 'leader', 'leads_until', 'term')
local mine = leads[1] == ARGV[1]
if not mine and leads[2] and tonumber(leads[2]) > now then return -1 end
local term = tonumber(leads[3] or 0) + ((mine and leads[2] and tonumber(leads[2]) > now) and 0 or 1)
redis.call('HSET', SCALE, 'leader', ARGV[1], 'leads_until', now + ARGV[2], 'term', term)
return term
