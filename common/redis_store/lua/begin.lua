#!lua flags=allow-oom
-- Starts attempts of delivered entries, or says why not.
-- KEYS     namespace
-- ARGV     1-3 see ending, idle (ms), max_attempts, worker, instance, epoch, busy (leases held here),
--          then for each entry: entry, job_id, token
-- Answers  for each entry: run attempt waited reclaimed alone | done | stale | gone | held | later |
--          expired | dead | usurped
-- Promise  P2: only the live copy. P3: a running job only after its lease, or under the caller's own older
--          epoch. P4: the token finds its own start again. P6: starts count here.
-- @include keys record events queue ending
local idle, max_attempts, worker, instance = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local epoch, busy, alone = tonumber(ARGV[8]), tonumber(ARGV[9]), false
local seat = redis.call('HMGET', worker_key(worker), 'instance', 'epoch')
local usurped = seat[1] ~= instance or tonumber(seat[2] or '') ~= epoch

-- @include judge start
local items = {}
for i = 10, #ARGV, 3 do
  local item = {entry = ARGV[i], id = ARGV[i + 1], token = ARGV[i + 2]}
  item.job = not usurped and read_record(item.id) or nil
  item.word = usurped and 'usurped' or item.job and judge(item.entry, item.job, item.token)
    or judge_ended(item.id, item.token)
  if item.word == 'run' then
    busy, alone = busy + 1, alone or item.job.suspect
  end
  items[#items + 1] = item
end

local answers = {}
for i, item in ipairs(items) do
  if item.word == 'done' or item.word == 'stale' or item.word == 'gone' then drop_entry(item.entry) end
  if item.word == 'expired' and item.job then
    local _, shown = load_request(item.job)
    end_job(item.job, {status = 'expired', token = item.token, shown = shown})
  end
  if item.word == 'dead' and item.job then
    bury(item.job, item.token, 'crash', '"The worker was lost during the last attempt."')
  end
  if item.word == 'run' then start(item.job, item.token) end
  answers[i] = (item.word == 'run' or item.word == 'again') and started(item.job) or {item.word}
end
return answers
