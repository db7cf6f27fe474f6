-- The first jobs of lanes, the same number of each, as their leases will be: higher priority first, then the earlier time
-- to run, then the earlier submission. One row with all of them: a row for each would mean a step back into Python for
-- each.
SELECT json_group_array(json_array(seq, id, min(fence + 1, 9223372036854775807), kind, payload,
                                   min(attempts + 1, 2147483647), attempts_max, lease_us, timeout_us, shard_key, cursor,
                                   priority, lane))
  FROM (SELECT jobs.* FROM json_each(:lanes) AS wanted CROSS JOIN jobs
         WHERE jobs.seq IN (SELECT seq FROM jobs AS first WHERE first.lane = wanted.value AND state = 'ready'
                             ORDER BY priority DESC, run_at, seq LIMIT :count)
         ORDER BY jobs.lane, priority DESC, run_at, seq)
