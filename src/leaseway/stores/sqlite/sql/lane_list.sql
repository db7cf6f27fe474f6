-- The lanes of a tenant, or every lane, with their counters.
SELECT queue, tenant, needs, ready, scheduled, leased, done, failed, cancelled, bytes, closed_until, closed_why FROM lanes
 WHERE :tenant IS NULL OR tenant = :tenant
 ORDER BY queue, tenant, needs
