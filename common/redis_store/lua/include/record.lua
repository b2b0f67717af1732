-- The id of an entry that the server can read, or nil.
local function entry_id(text)
  local ms, seq = string.match(text or '', '^(%d+)%-(%d+)$')
  return ms and #ms < 20 and #seq < 20 and text or nil
end

-- The live record as a table, or nil when there is none or somebody broke it: what a script does with one job
-- must not raise an error and stop the others. Numbers that are reckoned with or written into JSON are numbers here.
local function read_record(id)
  local key = record_key(id)
  if type_of(key) ~= 'hash' then return nil end
  local flat, job = redis.call('HGETALL', key), {id = id}
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  job.created, job.starts, job.refunds = whole(job.created), whole(job.starts or '0'), whole(job.refunds or '0')
  if not (job.created and job.starts and job.refunds) then return nil end
  if job.state == 'running' then
    job.started, job.lease, job.epoch = whole(job.started), whole(job.lease), whole(job.epoch)
    if not (job.started and job.lease and job.epoch and job.worker and job.token) then return nil end
  elseif job.state == 'queued' then
    job.started, job.token = nil, nil
  else
    return nil
  end
  job.deadline, job.due, job.seq, job.entry = whole(job.deadline), whole(job.due), whole(job.seq), entry_id(job.entry)
  local log = job.stream and type_of(tokens_key(id))
  if log ~= 'stream' and log ~= 'none' then job.stream = nil end  -- not ours: no log
  return job
end

-- The record of an item; read again when an earlier item of this call was the same job.
local function current(item, handled)
  if handled[item.id] then item.job = read_record(item.id) end
  handled[item.id] = true
  return item.job
end

-- The request and its client-visible part travel in the entry; while a delayed retry waits, in the record.
local function load_request(job)
  if job.request then return job.request, job.shown end
  local found = job.entry and redis.call('XRANGE', JOBS, job.entry, job.entry)[1]
  local fields = {}
  for i = 1, found and #found[2] or 0, 2 do fields[found[2][i]] = found[2][i + 1] end
  return fields.request, fields.shown
end

-- Ends the current attempt in the ledger. `message` is a JSON string or nil.
local function close_attempt(job, outcome, message)
  local line = string.format('[%d,"%s",%d,%d,"%s",', job.starts, job.worker, job.started, now, outcome)
  job.ledger = (job.ledger and job.ledger .. ',' or '') .. line .. (message or 'null') .. ']'
  job.started = nil
end
