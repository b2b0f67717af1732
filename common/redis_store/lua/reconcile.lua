#!lua flags=allow-oom
-- Looks after live records whose entry somebody else removed, or a recreated group passed over.
-- KEYS     namespace
-- ARGV     1-3 see ending, idle (ms), then job ids
-- Answers  for each id: fine | requeued | lost | gone
-- Promise  P1: a live job can be delivered, or it ends with cause lost. A live lease is left alone.
-- @include keys record events queue owners ending
local idle, delivered = tonumber(ARGV[4]), nil
for _, group in ipairs(redis.call('EXISTS', JOBS) == 1 and redis.call('XINFO', 'GROUPS', JOBS) or {}) do
  local fields = {}
  for i = 1, #group, 2 do fields[group[i]] = group[i + 1] end
  if fields.name == GROUP then delivered = fields['last-delivered-id'] end
end

local function passed(entry)  -- whether the group's cursor is beyond the entry
  local ms, seq = string.match(entry, '(%d+)-(%d+)')
  local last_ms, last_seq = string.match(delivered, '(%d+)-(%d+)')
  ms, last_ms = tonumber(ms), tonumber(last_ms)
  return ms < last_ms or (ms == last_ms and tonumber(seq) <= tonumber(last_seq))
end

local function comes_up(entry)  -- whether it will be delivered, or is in somebody's hands
  if not delivered or not passed(entry) then return true end
  return #redis.call('XPENDING', JOBS, GROUP, entry, entry, 1) > 0
end

local function reconcile(job)
  if job.deadline then redis.call('ZADD', DEADLINES, 'NX', job.deadline, job.id) end
  if job.due then
    return redis.call('ZADD', RETRIES, 'NX', job.due, job.id) == 1 and 'requeued' or 'fine'
  end
  if job.state == 'running' and job.lease + idle > now then return 'fine' end
  local request, shown = load_request(job)
  if not request then
    bury(job, nil, 'lost', GONE)
    return 'lost'
  end
  if job.entry and comes_up(job.entry) then return 'fine' end
  redis.call('HSET', record_key(job.id), 'entry', add_entry(job.id, job.starts + 1, request, shown))
  redis.call('HDEL', record_key(job.id), 'due', 'request', 'shown')
  redis.call('ZREM', RETRIES, job.id)
  drop_entry(job.entry)
  return 'requeued'
end

local answers = {}
for i = 5, #ARGV do
  local job = read_record(ARGV[i])
  answers[#answers + 1] = job and reconcile(job) or 'gone'
end
return answers
