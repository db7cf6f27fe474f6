-- Summaries of jobs by id.
SELECT jobs.id, kind, queue, tenant, state, priority, attempts, attempts_max,
       CASE WHEN length(CAST(progress AS BLOB)) <= 2000 THEN progress END, owner, until, cancel_requested, created_at, run_at, finished_at, last_error_code, last_error_at
  FROM json_each(:ids) AS asked CROSS JOIN jobs ON jobs.id = asked.value JOIN lanes ON lanes.id = jobs.lane
