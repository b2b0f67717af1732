-- Putting a job into the stream and taking it out again.
local function drop_entry(entry)
  if not entry then return end
  redis.call('XACK', JOBS, GROUP, entry)
  redis.call('XDEL', JOBS, entry)
end

-- A read makes an entry look fresh in the group. Handed back, it is idle for as long as it really was, or
-- free for the next sweep. JUSTID: a plain XCLAIM would raise the delivery count.
local function hand_back(entry, consumer, unit, ms)
  redis.call('XCLAIM', JOBS, GROUP, consumer, 0, entry, unit, ms, 'JUSTID')
end

local function add_entry(id, attempt, request, shown)
  local fields = {'job_id', id, 'attempt', attempt, 'request', request}
  if shown and shown ~= '' then
    fields[7], fields[8] = 'shown', shown
  end
  return redis.call('XADD', JOBS, '*', unpack(fields))
end
