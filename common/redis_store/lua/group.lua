#!lua flags=allow-oom
-- Creates stream and consumer group if they are missing, reading from the beginning.
-- KEYS     namespace
-- ARGV     none
-- Answers  created | exists
-- Promise  P10: a bare XGROUP CREATE is refused by a full server, inside this script it is not.
-- @include keys
if redis.call('EXISTS', JOBS) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', JOBS)) do
    for i = 1, #group, 2 do
      if group[i] == 'name' and group[i + 1] == GROUP then return 'exists' end
    end
  end
end
redis.call('XGROUP', 'CREATE', JOBS, GROUP, '0', 'MKSTREAM')
return 'created'
