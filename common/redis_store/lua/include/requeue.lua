-- running -> queued after close_attempt: at once, or when `due` has come. Remembers the settled token (P4).
local function requeue(job, token, answer, due)
  local request, shown = load_request(job)
  if not request then
    bury(job, token, 'lost', GONE)
    return 'failed'
  end
  -- First the one write that somebody else's entry id can refuse.
  local entry = not due and add_entry(job.id, job.starts + 1, request, shown)
  local key = record_key(job.id)
  redis.call('HDEL', key, 'token', 'worker', 'instance', 'epoch', 'lease', 'started', 'seq', 'alone', 'entry')
  redis.call('HSET', key, 'state', 'queued', 'ledger', job.ledger, 'settled', token, 'answer', answer)
  if job.refunds > 0 then redis.call('HSET', key, 'refunds', job.refunds) end
  if due then
    redis.call('HSET', key, 'request', request, 'shown', shown or '', 'due', due)
    redis.call('ZADD', RETRIES, due, job.id)
  else
    redis.call('HSET', key, 'entry', entry)
  end
  drop_entry(job.entry)
  count('running', -1)
  emit(job, 'state', 'status', 'queued')
  return answer
end
