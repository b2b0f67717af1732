-- N of the slot worker-N.
local function number_of(slot) return tonumber(string.match(slot, '^worker%-(%d+)$')) end

-- How many live workers below this slot cannot read: so many stand in for them.
local function unable_below(slot)
  local number, unable = number_of(slot), 0
  if not number then return 0 end
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '(' .. now, '+inf')) do
    local below = (number_of(other) or number) < number
    if below and redis.call('HGET', worker_key(other), 'ready') == '0' then unable = unable + 1 end
  end
  return unable
end
