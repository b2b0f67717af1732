-- Names, clock and types. Every script begins with this: KEYS[1] is the namespace, and every key below
-- shares its hash slot when it is written in braces. Reading the permanent keys here raises WRONGTYPE
-- before anything is written (P5: Lua does not roll back).
local ns = KEYS[1]
local GROUP = 'workers'
local JOBS, DLQ = ns .. ':jobs', ns .. ':dlq'
local RETRIES, DEADLINES, RECENT = ns .. ':retries', ns .. ':deadlines', ns .. ':recent'
local COUNTS, SCALE, WORKERS = ns .. ':counts', ns .. ':scale', ns .. ':workers'
local function record_key(id) return ns .. ':job:' .. id end
local function result_key(id) return ns .. ':result:' .. id end
local function tokens_key(id) return ns .. ':tokens:' .. id end
local function idem_key(owned) return ns .. ':idem:' .. owned end
local function worker_key(name) return ns .. ':worker:' .. name end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)  -- P8: the one clock, Unix milliseconds

redis.call('XLEN', JOBS)
redis.call('XLEN', DLQ)
redis.call('ZCARD', RETRIES)
redis.call('ZCARD', DEADLINES)
redis.call('ZCARD', RECENT)
for _, count in ipairs(redis.call('HVALS', COUNTS)) do
  if not tonumber(count) then error('WRONGTYPE a count is not a number') end
end

local function count(field, by) redis.call('HINCRBY', COUNTS, field, by) end
