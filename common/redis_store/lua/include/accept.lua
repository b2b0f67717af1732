-- Accepting a job. Listings are made anew when somebody broke them: the reconciler knows what is due.
clear_foreign(RETRIES, 'zset')
clear_foreign(DEADLINES, 'zset')
clear_foreign(RECENT, 'zset')

-- Raises WRONGTYPE before any write when somebody put something under a new job's names.
local function check_new(id)
  redis.call('HLEN', record_key(id))
  redis.call('XLEN', tokens_key(id))
end

-- Creates a live job: record, entry, deadline, listing, count, all in this script (P5).
-- owner is JSON. job: id request shown owner idem fingerprint expires_in stream origin recent_max ('' is none)
local function accept(job)
  local fields = {'state', 'queued', 'created', now, 'entry', add_entry(job.id, 1, job.request, job.shown)}
  local function put(name, value)
    if value and value ~= '' then
      fields[#fields + 1], fields[#fields + 2] = name, value
    end
  end
  if job.expires_in ~= '' then
    local deadline = now + job.expires_in
    put('deadline', deadline)
    redis.call('ZADD', DEADLINES, deadline, job.id)
  end
  put('owner', job.owner)
  put('stream', job.stream)
  put('origin', job.origin)
  put('idem', job.idem)
  redis.call('HSET', record_key(job.id), unpack(fields))
  if job.idem ~= '' then redis.call('SET', idem_key(job.idem), job.id .. ' ' .. job.fingerprint) end
  if job.recent_max > 0 then
    redis.call('ZADD', RECENT, now, job.id)
    redis.call('ZREMRANGEBYRANK', RECENT, 0, -job.recent_max - 1)
  end
  count('submitted', 1)
  count_open(job.owner, 1)
  if job.stream ~= '' then
    redis.call('XADD', tokens_key(job.id), '*', 'kind', 'state', 'attempt', '0', 'status', 'queued')
  end
end
