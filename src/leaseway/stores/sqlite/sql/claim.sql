-- Lease the first jobs of a lane: higher priority first, then the earlier time to run, then the earlier submission.
-- The attempt is counted here, so that a job that kills its worker cannot come back for ever.
UPDATE jobs
   SET stage = 2, attempts = attempts + 1, fence = fence + 1,
       token = :token, owner = :worker, until = :now + lease_us
 WHERE seq IN (SELECT seq FROM jobs WHERE lane = :lane AND stage = 0
                ORDER BY priority DESC, run_at, seq LIMIT :count)
RETURNING seq, run_at, id, fence, kind, payload, attempts, attempts_max, lease_us, timeout_us,
          shard_key, cursor, priority, lane
