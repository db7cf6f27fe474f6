-- Scheduled jobs whose time has come are ready, a bounded number at a time.
UPDATE jobs SET stage = 0
 WHERE seq IN (SELECT seq FROM jobs WHERE stage = 1 AND run_at <= :now ORDER BY run_at, seq LIMIT :limit)
RETURNING lane
