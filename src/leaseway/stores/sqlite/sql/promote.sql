-- Scheduled jobs whose time has come are ready: the earliest ones, a bounded number at a time.
UPDATE jobs SET state = 'ready'
 WHERE seq IN (SELECT seq FROM jobs WHERE state = 'scheduled' AND run_at <= :now ORDER BY run_at, seq LIMIT :limit)
RETURNING lane
