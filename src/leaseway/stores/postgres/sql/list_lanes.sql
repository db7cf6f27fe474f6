-- Every lane with its counters.
SELECT queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled FROM :schema.lane_counts
 ORDER BY queue, tenant, needs
