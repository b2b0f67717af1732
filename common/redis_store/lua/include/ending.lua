-- Ending a job. Scripts that include this take the result TTL, the idempotency TTL (milliseconds) and the
-- length of the dead-letter stream as ARGV 1 to 3.
local RESULT_TTL, IDEM_TTL, DLQ_MAXLEN = ARGV[1], ARGV[2], ARGV[3]

-- The reconciler, or a submit, makes them anew.
clear_foreign(RETRIES, 'zset')
clear_foreign(DEADLINES, 'zset')

-- The ended record: what a client may read, plus the ending token (P4). Its first three fields are fixed, and
-- its last: read_ending looks at them, and read.lua cuts a long result off. An attempt that was running is told
-- by `started`; derived fields are left out.
local function ended_record(job, ending)
  local json = '{"status":"' .. ending.status .. '","token":"' .. (ending.token or '')
    .. (ending.result and '","size":' .. #ending.result or '"')
    .. ',"created":' .. job.created .. ',"finished":' .. now
  if job.starts > 0 then json = json .. ',"starts":' .. job.starts end
  if job.started then json = json .. ',"started":' .. job.started .. ',"worker":"' .. job.worker .. '"' end
  if job.deadline then json = json .. ',"deadline":' .. job.deadline end
  if job.owner then json = json .. ',"owner":' .. job.owner end
  if job.origin then json = json .. ',"origin":"' .. job.origin .. '"' end
  if ending.shown and ending.shown ~= '' then json = json .. ',"shown":' .. ending.shown end
  if job.ledger then json = json .. ',"ledger":[' .. job.ledger .. ']' end
  if ending.error then json = json .. ',"error":' .. ending.error end
  if ending.result then json = json .. ',"result":' .. ending.result end
  return json .. '}'
end

-- live -> ended in one go: result key, record, entry, due times, counts, event log, waiters (P5, P7, P9).
-- ending: status token shown result error, the last three JSON
local function end_job(job, ending)
  redis.call('SET', result_key(job.id), ended_record(job, ending), 'PX', RESULT_TTL)
  redis.call('DEL', record_key(job.id))
  drop_entry(job.entry)
  if job.due then redis.call('ZREM', RETRIES, job.id) end
  if job.deadline then redis.call('ZREM', DEADLINES, job.id) end
  if job.idem then redis.call('PEXPIRE', idem_key(job.idem), IDEM_TTL) end
  if job.state == 'running' then count('running', -1) end
  count(ending.status, 1)
  count_open(job.owner, -1)
  if job.stream then
    emit(job, 'state', 'status', ending.status)
    redis.call('PEXPIRE', tokens_key(job.id), RESULT_TTL)
  else
    notify(job)
  end
end

local GONE = '"Somebody removed the job from the queue, and its request with it."'

-- Ends a job as failed, with a dead letter that can be redriven. `message` is a JSON string.
local function bury(job, token, cause, message)
  local request, shown = load_request(job)
  redis.call('XADD', DLQ, 'MAXLEN', '~', DLQ_MAXLEN, '*', 'job_id', job.id, 'cause', cause, 'error', message,
    'attempts', job.starts, 'owner', job.owner or '', 'request', request or '', 'shown', shown or '')
  local failure = '{"cause":"' .. cause .. '","message":' .. message .. '}'
  end_job(job, {status = 'failed', token = token, shown = shown, error = failure})
end
