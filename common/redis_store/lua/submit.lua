#!lua
-- Accepts a job once, or answers what an earlier submit did.
-- KEYS     namespace
-- ARGV     job_id, request (JSON), shown (JSON or ''), owner, idem ('owner:key' or ''), fingerprint,
--          expires_in (ms or ''), stream ('1' or ''), recent_max, max_depth, max_open (0: no limit)
-- Answers  accepted created position | replayed job_id | conflict | full depth | owner_full open
-- Promise  P4: a re-sent submit finds its own job id. P5: key and job are stored together. P10: no allow-oom
--          flag, so that a full server refuses it before any write.
-- @include keys record ended queue owners accept
local job = {
  id = ARGV[1], request = ARGV[2], shown = ARGV[3], owner = ARGV[4], idem = ARGV[5], fingerprint = ARGV[6],
  expires_in = ARGV[7], stream = ARGV[8], recent_max = tonumber(ARGV[9]),
}
local max_depth, max_open = tonumber(ARGV[10]), tonumber(ARGV[11])
local waiting = redis.call('XLEN', JOBS)
local position = waiting - redis.call('XPENDING', JOBS, GROUP)[1]

local mine = read_record(job.id)
if mine then return {'accepted', mine.created, math.max(0, position - 1)} end
if read_ending(job.id) then return {'replayed', job.id} end

if job.idem ~= '' then
  local known = redis.call('GET', idem_key(job.idem))
  local known_id, fingerprint = string.match(known or '', '^(%S+) (%S+)$')
  if known and not known_id then error('WRONGTYPE an idempotency key is broken') end
  if known_id and redis.call('EXISTS', record_key(known_id), result_key(known_id)) > 0 then
    if fingerprint ~= job.fingerprint then return {'conflict'} end
    return {'replayed', known_id}
  end
end

check_new(job.id)
local depth = waiting + redis.call('ZCARD', RETRIES)
if max_depth > 0 and depth >= max_depth then return {'full', depth} end
local open = max_open > 0 and open_jobs(job.owner) or 0
if max_open > 0 and open >= max_open then return {'owner_full', open} end
accept(job)
return {'accepted', now, position}
