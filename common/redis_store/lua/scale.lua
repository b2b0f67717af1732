#!lua flags=allow-oom,no-writes
-- Reads the published decision, its history and the live workers.
-- KEYS     namespace
-- ARGV     length of the history to show
-- Answers  now (ms), decision as name value ..., history entries newest first, workers as {name, name value ...}
-- Promise  P8: ages come from the one clock.
-- @include keys
local workers = {}
for i, name in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '(' .. now, '+inf')) do
  workers[i] = {name, type_of(worker_key(name)) == 'hash' and redis.call('HGETALL', worker_key(name)) or {}}
end
local history = redis.call('XREVRANGE', SCALE_LOG, '+', '-', 'COUNT', ARGV[1])
return {now, redis.call('HGETALL', SCALE), history, workers}
