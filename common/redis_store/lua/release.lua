#!lua flags=allow-oom
-- Gives jobs back whose model was not asked: queued again at once, the start refunded.
-- KEYS     namespace
-- ARGV     1-3 see ending, max_attempts, max_refunds, then for each lease: job_id, token
-- Answers  for each lease: released | failed | lost, or what the token was answered before
-- Promise  P6: refunds are bounded; after the last one a start counts although it was given back.
-- @include keys record ended events queue owners ending requeue
local max_attempts, max_refunds = tonumber(ARGV[4]), tonumber(ARGV[5])
local items = {}
for i = 6, #ARGV, 2 do items[#items + 1] = {id = ARGV[i], token = ARGV[i + 1]} end
for _, item in ipairs(items) do item.job = read_record(item.id) end

local function release(job, token)
  if job.refunds < max_refunds then
    job.refunds = job.refunds + 1
  elseif job.starts - job.refunds >= max_attempts then
    bury(job, token, 'error', '"No worker could reach the model: given back too often."')
    return 'failed'
  end
  close_attempt(job, 'released')
  return requeue(job, token, 'released')
end

local answers, handled = {}, {}
for i, item in ipairs(items) do
  local job = current(item, handled)
  if job and job.token == item.token then
    answers[i] = release(job, item.token)
  else
    answers[i] = settled_before(item.id, job, item.token)
  end
end
return answers
