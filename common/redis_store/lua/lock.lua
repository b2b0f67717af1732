#!lua flags=allow-oom
-- Takes or keeps a named lock; it ends by itself, so that a killed holder does not end recovery for ever.
-- KEYS     namespace
-- ARGV     name, holder, ttl (ms)
-- Answers  1 held | 0 another holds it
-- Promise  P4: the holder takes it again. P7: it has a TTL.
-- @include keys
local key = ns .. ':lock:' .. ARGV[1]
clear_foreign(key, 'string')
local holder, left = redis.call('GET', key), redis.call('PTTL', key)
-- One that would never end, or too late, was taken by none of us.
if holder and holder ~= ARGV[2] and left >= 0 and left <= tonumber(ARGV[3]) then return 0 end
redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
return 1
