-- Store a job. A known id was submitted before: nothing happens.
INSERT INTO jobs (id, lane, stage, kind, priority, run_at, attempts_max, lease_us, timeout_us,
                  created_at, shard_key, cursor, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
