"""What must hold at every instant, also right after a death: read by one script, so that nothing moves."""

from __future__ import annotations

from redis.asyncio import Redis

from tests.keyspace import command

#: Promises P1, P2, P5 and P7: counts add up, each live job has exactly one place, no job is live and ended,
#: due times and owners' counts are those of live jobs, and each consumer of the group has a slot or a job.
LOOK = """
local ns, wrong, live, running, ended = ARGV[1], {}, 0, 0, 0
local function say(...) wrong[#wrong + 1] = table.concat({...}, ' ') end
local function pairs_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end
local function compare(what, kept, wanted)
  for name, value in pairs(kept) do
    local due = wanted[name]
    if due ~= tonumber(value) then say(what, name, 'is', value, 'and should be', due or 'gone') end
  end
  for name, value in pairs(wanted) do
    if not kept[name] then say(what, name, 'is gone and should be', value) end
  end
end

local queued = {}
for _, entry in ipairs(redis.call('XRANGE', ns .. ':jobs', '-', '+')) do
  local id = pairs_of(entry[2]).job_id or ''
  queued[entry[1]] = id
  local named = redis.call('HGET', ns .. ':job:' .. id, 'entry')
  if named ~= entry[1] then say('entry', entry[1], 'is a stray') end
end

local retries, deadlines, owners = {}, {}, {}
for _, key in ipairs(redis.call('KEYS', ns .. ':job:*')) do
  local id = string.sub(key, #ns + 6)
  local job = pairs_of(redis.call('HGETALL', key))
  live = live + 1
  if job.state == 'running' then running = running + 1 end
  if redis.call('EXISTS', ns .. ':result:' .. id) == 1 then say(id, 'is live and ended') end
  if job.entry and queued[job.entry] ~= id then say(id, job.state, 'names an entry that is not there') end
  if not job.entry and not (job.due and job.request) then say(id, job.state, 'is nowhere') end
  if job.entry and job.due then say(id, 'is in two places') end
  retries[id], deadlines[id] = tonumber(job.due), tonumber(job.deadline)
  if job.owner then owners[job.owner] = (owners[job.owner] or 0) + 1 end
end
compare('retry of', pairs_of(redis.call('ZRANGE', ns .. ':retries', 0, -1, 'WITHSCORES')), retries)
compare('deadline of', pairs_of(redis.call('ZRANGE', ns .. ':deadlines', 0, -1, 'WITHSCORES')), deadlines)
compare('count of the owner', pairs_of(redis.call('HGETALL', ns .. ':owners')), owners)

local counts = pairs_of(redis.call('HGETALL', ns .. ':counts'))
for _, name in ipairs({'succeeded', 'failed', 'cancelled', 'expired'}) do
  ended = ended + (counts[name] or 0)
end
if live + ended ~= tonumber(counts.submitted or 0) then
  say(counts.submitted or 0, 'submitted,', live, 'live,', ended, 'ended')
end
if running ~= tonumber(counts.running or 0) then
  say(counts.running or 0, 'counted as running,', running, 'are')
end

local groups = redis.call('EXISTS', ns .. ':jobs') == 1 and redis.call('XINFO', 'GROUPS', ns .. ':jobs') or {}
for _, consumer in ipairs(groups[1] and redis.call('XINFO', 'CONSUMERS', ns .. ':jobs', 'workers') or {}) do
  local fields = pairs_of(consumer)
  local slot = redis.call('ZSCORE', ns .. ':workers', fields.name)
  if fields.pending == 0 and not slot then say('consumer', fields.name, 'has neither slot nor job') end
end
return wrong
"""


async def wrong_now(raw: Redis, namespace: str) -> list[str]:
    """What is wrong at this instant, in words."""
    return [str(line) for line in await command(raw, "EVAL", LOOK, 0, namespace)]
