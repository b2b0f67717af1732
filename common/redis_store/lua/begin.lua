#!lua flags=allow-oom
-- Starts attempts of delivered entries, or says why not.
-- KEYS     namespace
-- ARGV     1-3 see ending, idle (ms), max_attempts, worker, instance, epoch, busy (leases held here),
--          then for each entry: entry, job_id, token
-- Answers  for each entry: run attempt waited reclaimed alone | done | stale | gone | held | later |
--          expired | dead | usurped
-- Promise  P2: only the live copy. P3: a running job only after its lease, or under an older epoch of the
--          caller's instance and slot. P4: the token finds its own start again. P6: starts count here.
-- @include keys record ended events queue owners ending
local idle, max_attempts, worker, instance = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local epoch, busy, alone = tonumber(ARGV[8]), tonumber(ARGV[9]), false
clear_foreign(worker_key(worker), 'hash')
local seat = redis.call('HMGET', worker_key(worker), 'instance', 'epoch')
redis.call('XPENDING', JOBS, GROUP)  -- raises NOGROUP before any write
local usurped = seat[1] ~= instance or whole(seat[2]) ~= epoch

-- @include judge start
local items, taken = {}, {}
for i = 10, #ARGV, 3 do
  local item = {entry = ARGV[i], id = ARGV[i + 1], token = ARGV[i + 2]}
  item.job = not usurped and read_record(item.id) or nil
  item.word = usurped and 'usurped' or taken[item.entry] and 'later'
    or item.job and judge(item.entry, item.job, item.token) or judge_ended(item.id, item.token)
  if item.word == 'run' or item.word == 'again' then
    busy, alone = busy + 1, alone or item.job.suspect or item.job.alone
  end
  taken[item.entry] = true
  items[#items + 1] = item
end

local answers = {}
for i, item in ipairs(items) do
  local job, word = item.job, item.word
  if word == 'done' or word == 'stale' or word == 'gone' then drop_entry(item.entry) end
  if word == 'held' then hand_back(item.entry, job.worker, 'TIME', job.lease) end
  if word == 'later' then hand_back(item.entry, worker, 'IDLE', idle) end
  if word == 'expired' and job then
    local _, shown = load_request(job)
    end_job(job, {status = 'expired', token = item.token, shown = shown})
  end
  if word == 'dead' and job then
    bury(job, item.token, 'crash', '"The worker was lost during the last attempt."')
  end
  if word == 'run' then start(job, item.token) end
  answers[i] = (word == 'run' or word == 'again') and started(job) or {word}
end
return answers
