-- Putting a job into the stream and taking it out again.
local function drop_entry(entry)
  redis.call('XACK', JOBS, GROUP, entry)
  redis.call('XDEL', JOBS, entry)
end

local function add_entry(id, attempt, request, shown)
  local fields = {'job_id', id, 'attempt', attempt, 'request', request}
  if shown and shown ~= '' then
    fields[7], fields[8] = 'shown', shown
  end
  return redis.call('XADD', JOBS, '*', unpack(fields))
end
