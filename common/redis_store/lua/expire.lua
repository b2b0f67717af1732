#!lua flags=allow-oom
-- Ends jobs whose deadline has passed, wherever they are.
-- KEYS     namespace
-- ARGV     1-3 see ending, limit
-- Answers  number of jobs ended, milliseconds until the next deadline (-1: none waits)
-- Promise  P4 and P8: guarded by deadline <= TIME, so any number of time keepers may run it.
-- @include keys record events queue owners ending due
local ids = redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, ARGV[4])
local ended = 0
for _, id in ipairs(ids) do
  local job = read_record(id)
  if job and job.deadline and job.deadline > now then
    redis.call('ZADD', DEADLINES, job.deadline, id)
  elseif job and job.deadline then
    local _, shown = load_request(job)
    end_job(job, {status = 'expired', shown = shown})
    ended = ended + 1
  else
    redis.call('ZREM', DEADLINES, id)
  end
end
return {ended, next_in(DEADLINES)}
