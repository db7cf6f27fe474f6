-- Jobs, newest first, unfinished and finished. The client inserts :conditions.
SELECT id, kind, queue, tenant, state::text, priority, attempts, attempts_max, fence, payload, shard_key, cursor, progress,
       result, owner, until, lease_us, timeout_us, cancel_requested, created_at, run_at, finished_at, last_error_code,
       last_error_at, needs
  FROM (
  (SELECT * FROM (
     SELECT jobs.id, kind, queue, tenant, state, priority, attempts, attempts_max, fence, payload, shard_key, cursor,
            progress, NULL AS result, owner, until, lease_us, timeout_us, cancel_requested, created_at, run_at,
            NULL::bigint AS finished_at, last_error_code, last_error_at, needs
       FROM :schema.jobs JOIN :schema.payloads ON payloads.id = jobs.id JOIN :schema.lanes ON lanes.id = lane) AS unfinished
    WHERE :conditions ORDER BY id DESC LIMIT $1)
  UNION ALL
  (SELECT * FROM (
     SELECT history.id, kind, queue, tenant, state, priority, attempts, attempts_max, fence, payload, shard_key, cursor,
            progress, result, NULL AS owner, NULL::bigint AS until, lease_us, timeout_us, cancel_requested, created_at,
            run_at, finished_at, last_error_code, last_error_at, needs
       FROM :schema.history JOIN :schema.lanes ON lanes.id = lane) AS finished
    WHERE :conditions ORDER BY id DESC LIMIT $1)) AS both_tables
 ORDER BY id DESC LIMIT $1
