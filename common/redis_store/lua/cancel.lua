#!lua flags=allow-oom
-- Cancels a live job; whoever runs it learns so at its next extend.
-- KEYS     namespace
-- ARGV     1-3 see ending, job_id
-- Answers  cancelled | ended status | gone
-- Promise  P4: cancelling a cancelled job answers cancelled. P9: an ended job stays as it is.
-- @include keys record ended events queue owners ending
local id = ARGV[4]
local job = read_record(id)
if job then
  local _, shown = load_request(job)
  end_job(job, {status = 'cancelled', shown = shown})
  return {'cancelled'}
end
local status = read_ending(id)
if not status and is_broken(id) then error('WRONGTYPE the job is broken') end
if not status then return {'gone'} end
if status == 'cancelled' then return {'cancelled'} end
return {'ended', status}
