-- Milliseconds until the first of a sorted set of times, -1 when there is none. A time that is not ours may be
-- beyond what an answer can hold.
local function next_in(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not first then return -1 end
  return math.min(math.max(0, (tonumber(first) or math.huge) - now), 86400000)
end
