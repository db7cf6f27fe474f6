-- The same in one lane.
UPDATE jobs SET state = 'ready'
 WHERE seq IN (SELECT seq FROM jobs INDEXED BY jobs_scheduled_by_lane
                WHERE lane = :lane AND state = 'scheduled' AND run_at <= :now ORDER BY run_at, seq LIMIT :limit)
