#!lua flags=allow-oom
-- Removes deliveries that are no jobs: foreign or deleted entries.
-- KEYS     namespace
-- ARGV     entry ids
-- Answers  number of entries removed from the group
-- Promise  P7: what cannot be run does not stay.
-- @include keys
local removed = redis.call('XACK', JOBS, GROUP, unpack(ARGV))
redis.call('XDEL', JOBS, unpack(ARGV))
return removed
