#!lua flags=allow-oom
-- Registers a gateway with live jobs: it is told on its channel when they end or their event log grows.
-- KEYS     namespace
-- ARGV     gateway, then job ids
-- Answers  for each id: ended | live | gone
-- Promise  P7: the registration lives in the record and goes with it.
-- @include keys record ended
local gateway, answers = ARGV[1], {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local job = read_record(id)
  if job then
    if not string.find(' ' .. (job.watch or '') .. ' ', ' ' .. gateway .. ' ', 1, true) then
      redis.call('HSET', record_key(id), 'watch', job.watch and job.watch .. ' ' .. gateway or gateway)
    end
    answers[#answers + 1] = 'live'
  else
    answers[#answers + 1] = read_ending(id) and 'ended' or 'gone'
  end
end
return answers
