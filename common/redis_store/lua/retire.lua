#!lua flags=allow-oom
-- Gives a worker's slot back.
-- KEYS     namespace
-- ARGV     worker, process
-- Answers  retired | taken
-- Promise  P7: the consumer goes only when this script saw nothing pending (DELCONSUMER drops its entries).
-- @include keys fleet slots
local worker, process = ARGV[1], ARGV[2]
local holder = slot_fields(worker, 'process')[1]
if holder and holder ~= process then return 'taken' end
redis.call('DEL', worker_key(worker))
redis.call('ZREM', WORKERS, worker)
if #redis.call('XPENDING', JOBS, GROUP, '-', '+', 1, worker) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', JOBS, GROUP, worker)
end
return 'retired'
