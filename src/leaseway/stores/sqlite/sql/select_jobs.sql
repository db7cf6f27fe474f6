-- Jobs. The store appends the conditions of a filter.
SELECT jobs.id AS id, kind, queue, tenant, state, priority, attempts, attempts_max, fence, payload, shard_key,
       cursor, progress, result, owner, until, lease_us, timeout_us, cancel_requested, created_at, run_at,
       finished_at, last_error_code, last_error_at, needs
  FROM jobs JOIN lanes ON lanes.id = jobs.lane
