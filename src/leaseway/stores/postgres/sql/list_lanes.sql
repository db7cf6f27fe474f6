-- The lanes of a tenant, or every lane, with their counters.
SELECT queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled, bytes, closed_until, closed_why
  FROM :schema.lane_counts
 WHERE $1::text IS NULL OR tenant = $1
 ORDER BY queue, tenant, needs
