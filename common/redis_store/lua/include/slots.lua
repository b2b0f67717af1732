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
