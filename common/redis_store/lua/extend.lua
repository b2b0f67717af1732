#!lua flags=allow-oom
-- Renews leases: the record's lease time, and the entry's idle time in the group.
-- KEYS     namespace
-- ARGV     worker, then for each lease: job_id, token
-- Answers  for each lease: held | cancelled | expired | taken
-- Promise  P3: guarded by the token alone; a missing group raises NOGROUP before any write.
-- @include keys record ended
local worker, answers, leases = ARGV[1], {}, {}
redis.call('XPENDING', JOBS, GROUP)

for i = 2, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local job = read_record(id)
  if job and job.token == token then
    leases[#leases + 1] = job
    answers[#answers + 1] = 'held'
  else
    local status = not job and read_ending(id)
    answers[#answers + 1] = (status == 'cancelled' or status == 'expired') and status or 'taken'
  end
end

local entries = {}
for _, job in ipairs(leases) do
  redis.call('HSET', record_key(job.id), 'lease', now)
  entries[#entries + 1] = job.entry
end
-- JUSTID: a plain XCLAIM would raise the delivery count. It takes the entry back from whoever swept it.
if #entries > 0 then
  entries[#entries + 1] = 'JUSTID'
  redis.call('XCLAIM', JOBS, GROUP, worker, 0, unpack(entries))
end
return answers
