"""What must hold at every instant, also right after a death: read by one script, so that nothing moves."""

from __future__ import annotations

from redis.asyncio import Redis

from tests.keyspace import command

#: Promises P1, P2 and P5: counts add up, each live job has exactly one place, no job is live and ended.
LOOK = """
local ns, wrong, live, ended = ARGV[1], {}, 0, 0
local function say(...) wrong[#wrong + 1] = table.concat({...}, ' ') end
local function pairs_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end
local queued = {}
for _, entry in ipairs(redis.call('XRANGE', ns .. ':jobs', '-', '+')) do
  local id = pairs_of(entry[2]).job_id
  queued[entry[1]] = id
  local named = redis.call('HGET', ns .. ':job:' .. id, 'entry')
  if named ~= entry[1] then say('entry', entry[1], 'is a stray') end
end
for _, key in ipairs(redis.call('KEYS', ns .. ':job:*')) do
  local id = string.sub(key, #ns + 6)
  local job = pairs_of(redis.call('HGETALL', key))
  live = live + 1
  if redis.call('EXISTS', ns .. ':result:' .. id) == 1 then say(id, 'is live and ended') end
  local due = redis.call('ZSCORE', ns .. ':retries', id)
  if job.entry and queued[job.entry] ~= id then say(id, job.state, 'names an entry that is not there') end
  if not job.entry and not (due and job.request) then say(id, job.state, 'is nowhere') end
  if job.entry and due then say(id, 'is in two places') end
end
local counts = pairs_of(redis.call('HGETALL', ns .. ':counts'))
for _, name in ipairs({'succeeded', 'failed', 'cancelled', 'expired'}) do
  ended = ended + (counts[name] or 0)
end
if live + ended ~= tonumber(counts.submitted or 0) then
  say(counts.submitted or 0, 'submitted,', live, 'live,', ended, 'ended')
end
return wrong
"""


async def wrong_now(raw: Redis, namespace: str) -> list[str]:
    """What is wrong at this instant, in words."""
    return [str(line) for line in await command(raw, "EVAL", LOOK, 0, namespace)]
