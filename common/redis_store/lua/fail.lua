#!lua flags=allow-oom
-- Ends attempts that failed: queued again, now or later, or dead.
-- KEYS     namespace
-- ARGV     1-3 see ending, max_attempts, then for each lease: job_id, token, retry_in (ms, -1: never),
--          cause, message (JSON string)
-- Answers  for each lease: retrying | failed | expired | lost, or what the token was answered before
-- Promise  P5: the new entry and the end of the old one, or the failure and its dead letter, are one write.
--          P6: the budget is starts less refunds.
-- @include keys record ended events queue owners ending requeue
local max_attempts = tonumber(ARGV[4])
local items = {}
for i = 5, #ARGV, 5 do
  items[#items + 1] = {
    id = ARGV[i], token = ARGV[i + 1], retry_in = tonumber(ARGV[i + 2]), cause = ARGV[i + 3], message = ARGV[i + 4],
  }
end
for _, item in ipairs(items) do item.job = read_record(item.id) end

local function retry(job, item)
  local due = now + item.retry_in
  close_attempt(job, item.cause, item.message)
  if job.deadline and due >= job.deadline then
    local _, shown = load_request(job)
    end_job(job, {status = 'expired', token = item.token, shown = shown})
    return 'expired'
  end
  return requeue(job, item.token, 'retrying', item.retry_in > 0 and due or nil)
end

local answers, handled = {}, {}
for i, item in ipairs(items) do
  local job = current(item, handled)
  if not job or job.token ~= item.token then
    answers[i] = settled_before(item.id, job, item.token)
  elseif item.retry_in >= 0 and job.starts - job.refunds < max_attempts then
    answers[i] = retry(job, item)
  else
    bury(job, item.token, item.cause, item.message)
    answers[i] = 'failed'
  end
end
return answers
