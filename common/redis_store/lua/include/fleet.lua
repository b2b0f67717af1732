-- Raises WRONGTYPE before any write, as keys does, for the keys that only the fleet's scripts write.
local SCALE_LOG = ns .. ':scale:log'
redis.call('ZCARD', WORKERS)
redis.call('HLEN', SCALE)
redis.call('XLEN', SCALE_LOG)
