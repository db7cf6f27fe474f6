-- The first jobs of a lane, as their leases will be: higher priority first, then the earlier time to run, then the
-- earlier submission. One row with all of them: a row for each would mean a step back into Python for each.
SELECT json_group_array(json_array(seq, id, fence + 1, kind, CAST(payload AS TEXT), attempts + 1, attempts_max, lease_us, timeout_us,
                                   shard_key, cursor, priority, lane))
  FROM (SELECT * FROM jobs WHERE lane = :lane AND state = 'ready' ORDER BY priority DESC, run_at, seq LIMIT :count)
