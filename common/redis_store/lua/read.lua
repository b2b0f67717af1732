#!lua flags=allow-oom,no-writes
-- Reads jobs as clients see them.
-- KEYS     namespace
-- ARGV     job ids
-- Answers  for each id: ended record | live shown name value name value ... | broken | gone
-- Promise  P9: an ended record is read as it was written.
-- @include keys record ended
local answers = {}
for i, id in ipairs(ARGV) do
  if read_ending(id) then
    answers[i] = {'ended', redis.call('GET', result_key(id))}
  else
    local job = read_record(id)
    if job then
      local _, shown = load_request(job)
      answers[i] = redis.call('HGETALL', record_key(id))
      table.insert(answers[i], 1, shown or '')
      table.insert(answers[i], 1, 'live')
    else
      answers[i] = {is_broken(id) and 'broken' or 'gone'}
    end
  end
end
return answers
