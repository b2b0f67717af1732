-- Telling those who watch a job: gateways on their channel, and readers of the event log.
local function notify(job)
  for gateway in string.gmatch(job.watch or '', '%S+') do
    redis.call('PUBLISH', ns .. ':gateway:' .. gateway, job.id)
  end
end

-- One line of the job's event log, kept for jobs submitted with `stream`.
local function emit(job, kind, name, value)
  if not job.stream then return end
  redis.call('XADD', tokens_key(job.id), '*', 'kind', kind, 'attempt', job.starts, name, value)
  notify(job)
end
