#!lua flags=allow-oom
-- Makes the caller the leading scaler, or keeps it so.
-- KEYS     namespace
-- ARGV     candidate, ttl (ms)
-- Answers  the term's number | -1 another leads
-- Promise  P4: the leader gets its own term again. The term fences publish_scale.
-- @include keys fleet
local leads = redis.call('HMGET', SCALE, 'leader', 'leads_until', 'term')
local mine = leads[1] == ARGV[1]
local leads_on = (whole(leads[2]) or 0) > now
if leads_on and not mine then return -1 end
-- The first, or the first after somebody broke it, comes from the clock: no scaler can have led under it before.
local term = whole(leads[3])
if not term then term = now elseif not (mine and leads_on) then term = term + 1 end
redis.call('HSET', SCALE, 'leader', ARGV[1], 'leads_until', now + ARGV[2], 'term', term)
return term
