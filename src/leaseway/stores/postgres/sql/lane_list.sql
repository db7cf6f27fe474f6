-- Every lane with its counters.
SELECT queue, tenant, ready, scheduled, leased, done, failed, cancelled FROM :schema.lane_counts ORDER BY queue, tenant
