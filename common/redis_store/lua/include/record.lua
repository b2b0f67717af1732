-- The live record as a table, or nil when there is none or somebody broke it. Numbers that are reckoned with
-- or written into JSON are numbers here.
local function read_record(id)
  local key = record_key(id)
  local kind = redis.call('TYPE', key)
  if (kind.ok or kind) ~= 'hash' then return nil end
  local flat, job = redis.call('HGETALL', key), {id = id}
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  job.created, job.starts, job.refunds = tonumber(job.created), tonumber(job.starts or 0), tonumber(job.refunds or 0)
  if not (job.state and job.created and job.starts and job.refunds) then return nil end
  if job.state == 'running' then
    job.started, job.lease, job.epoch = tonumber(job.started), tonumber(job.lease), tonumber(job.epoch)
    if not (job.started and job.lease and job.epoch) then return nil end
  end
  job.deadline, job.due, job.seq = tonumber(job.deadline), tonumber(job.due), tonumber(job.seq)
  if job.stream then
    local log = redis.call('TYPE', tokens_key(id))
    if (log.ok or log) ~= 'stream' and (log.ok or log) ~= 'none' then job.stream = nil end  -- not ours: no log
  end
  return job
end

-- The record of an item; read again when an earlier item of this call was the same job.
local function current(item, handled)
  if handled[item.id] then item.job = read_record(item.id) end
  handled[item.id] = true
  return item.job
end

-- Status and ending token of an ended job; its record begins with them (see end_job).
local function read_ending(id)
  local kind = redis.call('TYPE', result_key(id))
  if (kind.ok or kind) ~= 'string' then return nil end
  return string.match(redis.call('GETRANGE', result_key(id), 0, 127), '^{"status":"(%a+)","token":"([^"]*)"')
end

-- Whether the caller's token holds the job; if not, the answer it got (or would have got) when it did.
local function settled_before(id, job, token)
  if job then return job.settled == token and job.answer or 'lost' end
  local status, ending_token = read_ending(id)
  return ending_token == token and status or 'lost'
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
