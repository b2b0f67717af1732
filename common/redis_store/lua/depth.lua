#!lua flags=allow-oom,no-writes
-- Reads every count in one instant.
-- KEYS     namespace
-- ARGV     none
-- Answers  now (ms), entries, pending, retrying, dead letters, then the counts as name value name value ...
-- Promise  P1. Entries less pending is the lag: exact, because finished entries are deleted in the same
--          script; the group's own lag turns nil as soon as an entry is deleted.
-- @include keys
local pending = 0
for _, group in ipairs(redis.call('EXISTS', JOBS) == 1 and redis.call('XINFO', 'GROUPS', JOBS) or {}) do
  local fields = {}
  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
  if fields.name == GROUP then pending = fields.pending end
end
local answer = {now, redis.call('XLEN', JOBS), pending, redis.call('ZCARD', RETRIES), redis.call('XLEN', DLQ)}
for _, value in ipairs(redis.call('HGETALL', COUNTS)) do answer[#answer + 1] = value end
return answer
