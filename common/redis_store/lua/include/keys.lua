-- Names, clock and types. Every script begins with this: KEYS[1] is the namespace, and every key below
-- shares its hash slot when it is written in braces. Reading the keys that nothing can make anew raises
-- WRONGTYPE before anything is written (P5: Lua does not roll back).
local ns = KEYS[1]
local GROUP = 'workers'
local JOBS, DLQ = ns .. ':jobs', ns .. ':dlq'
local RETRIES, DEADLINES, RECENT = ns .. ':retries', ns .. ':deadlines', ns .. ':recent'
local COUNTS, WORKERS = ns .. ':counts', ns .. ':workers'
local SCALE, SCALE_LOG = ns .. ':scale', ns .. ':scale:log'
local function record_key(id) return ns .. ':job:' .. id end
local function result_key(id) return ns .. ':result:' .. id end
local function tokens_key(id) return ns .. ':tokens:' .. id end
local function idem_key(owned) return ns .. ':idem:' .. owned end
local function worker_key(name) return ns .. ':worker:' .. name end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)  -- P8: the one clock, Unix milliseconds

-- A count or a time as we write them, or nil. No more digits than a number here can hold exactly.
local function whole(text) return text and #text < 15 and string.match(text, '^%d+$') and tonumber(text) or nil end

local function type_of(key)
  local kind = redis.call('TYPE', key)
  return kind.ok or kind
end

-- For keys that can be made anew: one of another type is somebody else's, and goes. Nothing waits for a person.
local function clear_foreign(key, kind)
  local found = type_of(key)
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
end

redis.call('XLEN', JOBS)
redis.call('XLEN', DLQ)
for _, count in ipairs(redis.call('HVALS', COUNTS)) do
  if not whole((string.gsub(count, '^%-', ''))) then error('WRONGTYPE a count is not a number') end
end

local function count(field, by) redis.call('HINCRBY', COUNTS, field, by) end
