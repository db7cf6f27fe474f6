-- The newest jobs and the jobs that ended last, each read along its index.
SELECT jobs.id, kind, queue, tenant, state, priority, attempts, attempts_max,
       CASE WHEN length(CAST(progress AS BLOB)) <= 2000 THEN progress END, owner, until, cancel_requested, created_at, run_at, finished_at, last_error_code, last_error_at
  FROM (SELECT seq FROM (SELECT seq FROM jobs ORDER BY id DESC LIMIT :newest)
         UNION
        SELECT seq FROM (SELECT seq FROM jobs INDEXED BY jobs_finished WHERE finished_at > :after
                          ORDER BY finished_at DESC LIMIT :ended)) AS late
 CROSS JOIN jobs ON jobs.seq = late.seq JOIN lanes ON lanes.id = jobs.lane
