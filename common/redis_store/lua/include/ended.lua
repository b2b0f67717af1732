-- What is known of a job that has no live record.
local ENDS = {succeeded = true, failed = true, cancelled = true, expired = true}

-- Status, ending token and size of the result (nil: none) of an ended job; its record begins with them (see
-- end_job).
local function read_ending(id)
  if type_of(result_key(id)) ~= 'string' then return nil end
  local head = redis.call('GETRANGE', result_key(id), 0, 127)
  local status, token = string.match(head, '^{"status":"(%a+)","token":"([^"]*)"')
  if ENDS[status] then return status, token, tonumber(string.match(head, '^[^,]*,[^,]*,"size":(%d+)')) end
end

-- Of a job whose record and ending cannot be read: whether somebody broke one of them.
local function is_broken(id) return redis.call('EXISTS', record_key(id), result_key(id)) > 0 end

-- Whether the caller's token holds the job; if not, the answer it got (or would have got) when it did.
local function settled_before(id, job, token)
  if job then
    local answered = job.answer == 'retrying' or job.answer == 'released'
    return answered and job.settled == token and job.answer or 'lost'
  end
  local status, ending_token = read_ending(id)
  return ending_token == token and status or 'lost'
end
