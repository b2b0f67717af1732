-- N of the slot worker-N.
local function number_of(slot) return tonumber(string.match(slot, '^worker%-(%d+)$')) end

-- A slot is made anew at its holder's next heartbeat.
local function slot_fields(name, ...)
  return type_of(worker_key(name)) == 'hash' and redis.call('HMGET', worker_key(name), ...) or {}
end

-- How many live workers below this slot cannot read: so many stand in for them. One that says nothing does not read.
local function unable_below(slot)
  local number, unable = number_of(slot), 0
  if not number then return 0 end
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '(' .. now, '+inf')) do
    local below = (number_of(other) or number) < number
    if below and slot_fields(other, 'ready')[1] ~= '1' then unable = unable + 1 end
  end
  return unable
end

-- Ends a slot, and its consumer unless something is pending there, which DELCONSUMER would drop.
local function give_up(slot)
  local idle = #redis.call('XPENDING', JOBS, GROUP, '-', '+', 1, slot) == 0  -- raises NOGROUP before any write
  redis.call('DEL', worker_key(slot))
  redis.call('ZREM', WORKERS, slot)
  if idle then redis.call('XGROUP', 'DELCONSUMER', JOBS, GROUP, slot) end
end
