-- The newest unfinished jobs, and the jobs that finished last.
-- $1 at most, $2 finished after, $3 at most of these, $4 and $5 the bounds of today, $6 today's partition. History is
-- append-only, so the last pages of today's partition and of the default partition hold the jobs that finished last.
-- Reading them costs the same at any size; the BRIN index on finished_at covers new pages only after a vacuum.
SELECT * FROM (
  SELECT jobs.id, kind, queue, tenant, state::text, priority, attempts, attempts_max,
         CASE WHEN octet_length(progress) <= 2000 THEN progress END, owner, until, cancel_requested, created_at, run_at, NULL::bigint AS finished_at, last_error_code, last_error_at
    FROM (SELECT * FROM :schema.jobs ORDER BY id DESC LIMIT $1) AS jobs
    JOIN :schema.payloads ON payloads.id = jobs.id JOIN :schema.lanes ON lanes.id = lane) AS newest
UNION ALL
SELECT * FROM (
  SELECT history.id, kind, queue, tenant, state::text, priority, attempts, attempts_max,
         CASE WHEN octet_length(progress) <= 2000 THEN progress END, NULL AS owner, NULL::bigint AS until, cancel_requested, created_at, run_at, finished_at, last_error_code, last_error_at
    FROM (SELECT * FROM :schema.history
           WHERE finished_at > $2 AND finished_at >= $4 AND finished_at < $5
             AND ctid >= (SELECT format('(%s,0)', greatest(0, pg_relation_size(to_regclass($6))
                                                              / current_setting('block_size')::integer - 128))::tid)
          UNION ALL
          SELECT * FROM :schema.history_default
           WHERE finished_at > $2
             AND ctid >= (SELECT format('(%s,0)', greatest(0, pg_relation_size(':schema.history_default')
                                                              / current_setting('block_size')::integer - 128))::tid)
           ORDER BY finished_at DESC LIMIT $3) AS history
    JOIN :schema.lanes ON lanes.id = lane) AS ended
