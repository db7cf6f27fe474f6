-- The next lanes with scheduled jobs after the lane that the last visit ended with, and whether jobs are due in them. Each
-- step jumps to the next lane in the index, however many jobs a lane has.
WITH RECURSIVE visited (lane, number) AS (
  SELECT min(lane), 1 FROM jobs INDEXED BY jobs_scheduled_by_lane
   WHERE state = 'scheduled' AND lane > (SELECT upto FROM promotion)
  UNION ALL
  SELECT (SELECT min(lane) FROM jobs INDEXED BY jobs_scheduled_by_lane
           WHERE state = 'scheduled' AND jobs.lane > visited.lane), number + 1
    FROM visited WHERE lane IS NOT NULL AND number < :limit)
SELECT lane, EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_scheduled_by_lane
                      WHERE jobs.lane = visited.lane AND state = 'scheduled' AND run_at <= :now)
  FROM visited WHERE lane IS NOT NULL
