-- Keys that only the fleet's scripts write. Each heartbeat and each round of the scaler writes them anew.
clear_foreign(WORKERS, 'zset')
clear_foreign(SCALE, 'hash')
clear_foreign(SCALE_LOG, 'stream')
