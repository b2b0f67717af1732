#!lua flags=allow-oom
-- Adds a chunk to the event log of a running job.
-- KEYS     namespace
-- ARGV     job_id, token, seq (1, 2, ... for each lease), text
-- Answers  ok | lost
-- Promise  P3: only the token's holder. P4: a sequence number is written once.
-- @include keys record events
local id, token, seq, text = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local job = read_record(id)
if not job or job.token ~= token then return 'lost' end
if seq > (job.seq or 0) then
  redis.call('HSET', record_key(id), 'seq', seq)
  emit(job, 'chunk', 'text', text)
end
return 'ok'
