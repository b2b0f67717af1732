#!lua
-- Queues dead jobs again as new jobs, linked to the old ones, and removes their dead letters.
-- KEYS     namespace
-- ARGV     recent_max, max_open (0: no limit), link TTL (ms), owner who asks (JSON, '': all are shown), then
--          for each dead job: dead letter id ('': only its link), job id, new job id, expires_in (ms or ''),
--          stream
-- Answers  for each dead job: queued and its new job's id | gone | owner_full
-- Promise  P4: whoever asks again, under whatever new ids, is told those of the first time. P5: letter, job
--          and link change together. P10: refused on a full server before any write, as submit is.
-- @include keys record queue owners accept
local max_open, link_ttl, asking, items, answers = tonumber(ARGV[2]), ARGV[3], ARGV[4], {}, {}
local function link_key(id) return ns .. ':redriven:' .. id end
for i = 5, #ARGV, 5 do
  local item = {old = ARGV[i + 1], id = ARGV[i + 2], expires_in = ARGV[i + 3], stream = ARGV[i + 4], fields = {}}
  local found = ARGV[i] ~= '' and redis.call('XRANGE', DLQ, ARGV[i], ARGV[i])[1]
  for j = 1, found and #found[2] or 0, 2 do item.fields[found[2][j]] = found[2][j + 1] end
  item.letter = found and found[1]
  clear_foreign(link_key(item.old), 'string')
  check_new(item.id)
  items[#items + 1] = item
end

for i, item in ipairs(items) do
  local letter = item.fields
  local queued_as, owner = string.match(redis.call('GET', link_key(item.old)) or '', '^(%S+) (.*)$')
  if queued_as and (asking == '' or asking == owner) then
    if item.letter then redis.call('XDEL', DLQ, item.letter) end  -- somebody's second letter of one job
    answers[i] = {'queued', queued_as}
  elseif queued_as or not letter.request or letter.request == '' then
    answers[i] = {'gone'}
  elseif max_open > 0 and open_jobs(letter.owner or '') >= max_open then
    answers[i] = {'owner_full'}
  else
    accept({
      id = item.id, request = letter.request, shown = letter.shown, owner = letter.owner, idem = '',
      expires_in = item.expires_in, stream = item.stream, origin = item.old, recent_max = tonumber(ARGV[1]),
    })
    redis.call('SET', link_key(item.old), item.id .. ' ' .. (letter.owner or ''), 'PX', link_ttl)
    redis.call('XDEL', DLQ, item.letter)
    answers[i] = {'queued', item.id}
  end
end
return answers
