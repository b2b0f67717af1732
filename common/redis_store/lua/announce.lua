#!lua flags=allow-oom
-- Takes or keeps a worker's slot.
-- KEYS     namespace
-- ARGV     instance, process (random), worker_id ('' = lowest free worker-N), seat held so far ('' = none),
--          lost ('1': had a seat and lost it), movable ('1'), ttl (ms), keep (ms), concurrency, busy, ready
-- Answers  seat name epoch desired (-1: none) scale age (ms) live lower workers that cannot read | taken
-- Promise  P3: the epoch rises with every new holder. P4: a process finds its own seat again. P7: TTLs.
-- @include keys fleet slots
local instance, process, wanted, held, lost, movable = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local ttl, keep = tonumber(ARGV[7]), tonumber(ARGV[8])

local function owner(name) return slot_fields(name, 'instance', 'process', 'epoch') end
local function free(name)  -- a seat without a holder is nobody's, however long it lasts
  return not owner(name)[2] or tonumber(redis.call('ZSCORE', WORKERS, name) or 0) <= now
end
-- A restart under the same instance takes its slot back at once; a process that lost it does not fight back.
local successor = held ~= '' and owner(held)[2]
local superseded = lost == '1' or (successor and successor ~= process)
local function mine(name) return not superseded and owner(name)[1] == instance end

local function choose()
  if wanted ~= '' then return (free(wanted) or mine(wanted)) and wanted or nil end
  for _, name in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
    if mine(name) then return name end
  end
  local n = 1
  while not free('worker-' .. n) do n = n + 1 end
  return 'worker-' .. n
end

-- A slot is left to its old instance for two more leases: a restart there takes its jobs back at once.
local function lower_free()
  for n = 1, (number_of(held) or 1) - 1 do
    local until_ms = redis.call('ZSCORE', WORKERS, 'worker-' .. n)
    if not until_ms or until_ms + 2 * ttl <= now then return 'worker-' .. n end
  end
end

local name = held ~= '' and owner(held)[2] == process and held or nil
local better = name and movable == '1' and wanted == '' and lower_free()
if better then give_up(name) end
name = better or name or choose()
if not name then return {'taken'} end

local key = worker_key(name)
-- A new number is always a higher one: a number that somebody broke is given up like a former holder's.
if owner(name)[2] ~= process or not whole(owner(name)[3]) then
  redis.call('DEL', key)
  redis.call('HSET', key, 'instance', instance, 'process', process, 'epoch', redis.call('HINCRBY', COUNTS, 'epoch', 1))
end
redis.call('HSET', key, 'concurrency', ARGV[9], 'busy', ARGV[10], 'ready', ARGV[11], 'seen', now)
redis.call('PEXPIRE', key, math.max(keep, ttl))
redis.call('ZADD', WORKERS, now + ttl, name)
local scale = redis.call('HMGET', SCALE, 'desired', 'updated')
local desired, updated = whole(scale[1]), whole(scale[2])
return {'seat', name, whole(redis.call('HGET', key, 'epoch')), desired or -1, updated and now - updated or -1,
  unable_below(name)}
