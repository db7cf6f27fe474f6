-- Store one job. A single job is faster without JSON.
INSERT INTO jobs (id, lane, state, kind, priority, run_at, attempts_max, lease_us, timeout_us,
                  shard_key, cursor, created_at, payload, trace)
VALUES (:id, :lane, :state, :kind, :priority, :run_at, :attempts_max, :lease_us, :timeout_us,
        :shard_key, :cursor, :now, :payload, :trace)
ON CONFLICT (id) DO NOTHING
