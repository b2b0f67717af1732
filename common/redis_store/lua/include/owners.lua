-- Unfinished jobs of each owner (JSON), which `max_open` limits. Jobs without an owner are not counted. Counts
-- are set, not incremented: somebody else's value must not raise an error after the first write (P5).
local OWNERS = ns .. ':owners'
clear_foreign(OWNERS, 'hash')

local function open_jobs(owner) return tonumber(redis.call('HGET', OWNERS, owner) or '') or 0 end

local function count_open(owner, by)
  if not owner or owner == '' then return end
  local open = open_jobs(owner) + by
  if open > 0 then redis.call('HSET', OWNERS, owner, open) else redis.call('HDEL', OWNERS, owner) end
end
