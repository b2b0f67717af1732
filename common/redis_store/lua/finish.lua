#!lua flags=allow-oom
-- Ends jobs as succeeded.
-- KEYS     namespace
-- ARGV     1-3 see ending, then for each lease: job_id, token, result (JSON), shown (JSON or '')
-- Answers  for each lease: succeeded | lost, or what the token was answered before
-- Promise  P3: only the token's holder. P4: the ending token gets its answer again. P5: result, entry,
--          record and counts change together.
-- @include keys record ended events queue owners ending
local items = {}
for i = 4, #ARGV, 4 do
  items[#items + 1] = {id = ARGV[i], token = ARGV[i + 1], result = ARGV[i + 2], shown = ARGV[i + 3]}
end
for _, item in ipairs(items) do item.job = read_record(item.id) end

local answers, handled = {}, {}
for i, item in ipairs(items) do
  local job = current(item, handled)
  if job and job.token == item.token then
    end_job(job, {status = 'succeeded', token = item.token, result = item.result, shown = item.shown})
    answers[i] = 'succeeded'
  else
    answers[i] = settled_before(item.id, job, item.token)
  end
end
return answers
