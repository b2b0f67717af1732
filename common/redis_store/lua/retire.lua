#!lua flags=allow-oom
-- Gives a worker's slot back.
-- KEYS     namespace
-- ARGV     worker, process
-- Answers  retired | taken
-- Promise  P7: the consumer goes only when this script saw nothing pending (give_up).
-- @include keys fleet slots
local worker, process = ARGV[1], ARGV[2]
local holder = slot_fields(worker, 'process')[1]
if holder and holder ~= process then return 'taken' end
give_up(worker)
return 'retired'
