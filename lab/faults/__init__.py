"""`iwl faults`: everything that can die, stall or be vandalised, done to a running lab and accounted for."""
