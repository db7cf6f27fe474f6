-- Jobs, newest first, unfinished and finished: at most $1, up to the one whose texts reach $2 bytes. The client inserts
-- :conditions. Sizes are known without reading the texts.
SELECT id, kind, queue, tenant, state::text, priority, attempts, attempts_max, fence, payload, shard_key, cursor, progress,
       result, owner, until, lease_us, timeout_us, cancel_requested, created_at, run_at, finished_at, last_error_code,
       last_error_at, needs
  FROM (SELECT *, sum(size) OVER (ORDER BY id DESC ROWS UNBOUNDED PRECEDING) - size AS before FROM (
  SELECT *, coalesce(octet_length(payload), 0) + coalesce(octet_length(cursor), 0) + coalesce(octet_length(progress), 0)
            + coalesce(octet_length(result), 0) AS size FROM (
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
   ORDER BY id DESC LIMIT $1) AS page) AS sized
 WHERE $2::bigint IS NULL OR before < $2
 ORDER BY id DESC
