-- Jobs. The store appends the tables and the conditions of a filter.
SELECT jobs.id AS id, kind, queue, tenant, state, priority, attempts, attempts_max, fence,
       coalesce(jobs.payload, (SELECT CAST(large.payload AS TEXT) FROM large_payloads AS large WHERE large.seq = jobs.seq), '')
         AS payload, shard_key,
       cursor, progress, result, owner, until, lease_us, timeout_us, cancel_requested, created_at, run_at,
       finished_at, last_error_code, last_error_at, needs
