-- queued or lost -> running: the next start, under the caller's token (begin only).
local function start(job, token)
  if job.crashed then
    close_attempt(job, 'crash')
  else
    count('running', 1)
  end
  job.starts, job.started, job.alone = job.starts + 1, now, job.suspect and '1' or nil
  local key = record_key(job.id)
  redis.call('HSET', key, 'state', 'running', 'token', token, 'worker', worker, 'instance', instance, 'epoch',
    epoch, 'lease', now, 'started', now, 'starts', job.starts)
  if job.crashed then
    redis.call('HSET', key, 'ledger', job.ledger)
    redis.call('HDEL', key, 'seq', 'alone')
  end
  if job.alone then redis.call('HSET', key, 'alone', '1') end
  emit(job, job.starts > 1 and 'attempt' or 'state', 'status', 'running')
end

local function started(job)
  local waited = job.starts == 1 and job.started and job.started - job.created or -1
  local reclaimed = job.ledger and string.find(job.ledger, '"crash",null]', -13, true)
  return {'run', job.starts, waited, reclaimed and 1 or 0, job.alone and 1 or 0}
end
