#!lua
-- Queues dead jobs again as new jobs, linked to the old ones, and removes their dead letters.
-- KEYS     namespace
-- ARGV     recent_max, max_open (0: no limit), then for each dead letter: dead letter id, new job id,
--          expires_in (ms or ''), stream
-- Answers  for each dead letter: queued | gone | owner_full
-- Promise  P4: a re-sent redrive finds its new job ids. P5: letter and job change together. P10: refused on
--          a full server before any write, as submit is.
-- @include keys record queue owners accept
local max_open, items, answers = tonumber(ARGV[2]), {}, {}
for i = 3, #ARGV, 4 do
  local item = {id = ARGV[i + 1], letter = ARGV[i], expires_in = ARGV[i + 2], stream = ARGV[i + 3], fields = {}}
  local found = redis.call('XRANGE', DLQ, item.letter, item.letter)[1]
  for j = 1, found and #found[2] or 0, 2 do item.fields[found[2][j]] = found[2][j + 1] end
  item.known = read_record(item.id) or read_ending(item.id)
  check_new(item.id)
  items[#items + 1] = item
end

for i, item in ipairs(items) do
  local letter = item.fields
  if item.known then
    answers[i] = 'queued'
  elseif not letter.request or letter.request == '' then
    answers[i] = 'gone'
  elseif max_open > 0 and open_jobs(letter.owner or '') >= max_open then
    answers[i] = 'owner_full'
  else
    accept({
      id = item.id, request = letter.request, shown = letter.shown, owner = letter.owner, idem = '',
      expires_in = item.expires_in, stream = item.stream, origin = letter.job_id, recent_max = tonumber(ARGV[1]),
    })
    redis.call('XDEL', DLQ, item.letter)
    answers[i] = 'queued'
  end
end
return answers
