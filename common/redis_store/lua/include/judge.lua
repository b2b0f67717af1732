-- What a delivery may do (begin only). Reads `idle`, `max_attempts`, `worker`, `instance`, `epoch`, `busy` and
-- `alone`.
local function judge_ended(id, token)
  local status, ending_token = read_ending(id)
  if not status then return 'gone' end
  if ending_token ~= token then return 'done' end
  return status == 'failed' and 'dead' or status
end

local function judge(entry, job, token)
  if job.token == token then return 'again' end
  if job.entry ~= entry then return 'stale' end
  if job.deadline and job.deadline <= now then return 'expired' end
  local spent = job.starts - job.refunds
  if job.state == 'running' then
    -- The slot, too: a superseded process that is back has another one, and the higher epoch.
    local own = job.instance == instance and job.worker == worker and job.epoch < epoch
    if not own and job.lease + idle > now then return 'held' end
    job.crashed = true
    if spent >= max_attempts then return 'dead' end
  end
  -- A job on its last start after a crash runs alone: it may be what kills workers.
  local crashed_before = job.crashed or string.find(job.ledger or '', '"crash"', 1, true)
  job.suspect = crashed_before and spent + 1 >= max_attempts
  if alone or (job.suspect and busy > 0) then return 'later' end
  return 'run'
end
