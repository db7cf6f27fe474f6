-- All workers, or those of one tenant.
SELECT since, seen_at, drain_requested, beat FROM workers
 WHERE :tenant IS NULL OR tenant = :tenant ORDER BY name LIMIT :most
