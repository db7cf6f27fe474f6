-- Leases that an earlier try of the same claim was granted, though its reply was lost.
UPDATE jobs SET until = :now + lease_us
 WHERE stage = 2 AND token = :token AND owner = :worker
RETURNING seq, run_at, id, fence, kind, payload, attempts, attempts_max, lease_us, timeout_us,
          shard_key, cursor, priority, lane
