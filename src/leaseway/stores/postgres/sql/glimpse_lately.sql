-- The newest jobs that live, and those that ended last.
-- $1 how many, $2 ended after, $3 how many of these, $4 and $5 today, $6 the table of today.
-- History grows at its end, so the last pages of today's table and of the rest hold what ended last: reading these pages
-- costs the same however much there is, while the index by time covers new pages only after the next vacuum.
SELECT * FROM (
  SELECT jobs.id, kind, queue, tenant, stage, priority, attempts, attempts_max, progress, owner, until,
         cancel_requested, created_at, run_at, NULL::bigint AS finished_at, last_error_code, last_error_at
    FROM (SELECT * FROM :schema.jobs ORDER BY id DESC LIMIT $1) AS jobs
    JOIN :schema.payloads ON payloads.id = jobs.id JOIN :schema.lanes ON lanes.id = lane) AS newest
UNION ALL
SELECT * FROM (
  SELECT history.id, kind, queue, tenant, stage, priority, attempts, attempts_max, progress, NULL AS owner,
         NULL::bigint AS until, cancel_requested, created_at, run_at, finished_at, last_error_code, last_error_at
    FROM (SELECT * FROM :schema.history
           WHERE finished_at > $2 AND finished_at >= $4 AND finished_at < $5
             AND ctid >= (SELECT format('(%s,0)', greatest(pg_relation_size(to_regclass($6)) / current_setting('block_size')::integer - 128, 0))::tid)
          UNION ALL
          SELECT * FROM :schema.history_rest
           WHERE finished_at > $2
             AND ctid >= (SELECT format('(%s,0)', greatest(pg_relation_size(':schema.history_rest') / current_setting('block_size')::integer - 128, 0))::tid)
           ORDER BY finished_at DESC LIMIT $3) AS history
    JOIN :schema.lanes ON lanes.id = lane) AS ended
