"""Where jobs, lanes and schedules live. Each store passes the contract in `leaseway.testing`, or is not a store."""
