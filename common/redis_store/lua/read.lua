#!lua flags=allow-oom,no-writes
-- Reads jobs as clients see them.
-- KEYS     namespace
-- ARGV     longest result (bytes of JSON; '': any): a longer one is left out of its record; then job ids
-- Answers  for each id: ended record | live shown name value name value ... | broken | gone
-- Promise  P9: an ended record is read as it was written.
-- @include keys record ended
local longest, answers = tonumber(ARGV[1]), {}

-- The result is the record's last field (see ended_record).
local function shown_ending(id, size)
  if not (longest and size and size > longest) then return redis.call('GET', result_key(id)) end
  local rest = redis.call('STRLEN', result_key(id)) - size - #',"result":}'
  return redis.call('GETRANGE', result_key(id), 0, rest - 1) .. '}'
end

for i = 1, #ARGV - 1 do
  local id = ARGV[i + 1]
  local status, _, size = read_ending(id)
  if status then
    answers[i] = {'ended', shown_ending(id, size)}
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
