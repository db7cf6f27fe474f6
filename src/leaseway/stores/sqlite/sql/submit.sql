-- Store jobs that differ only in id and payload, with one statement. A known id is ignored.
INSERT INTO jobs (id, lane, state, kind, priority, run_at, attempts_max, lease_us, timeout_us,
                  shard_key, cursor, created_at, payload, trace)
SELECT key, :lane, :state, :kind, :priority, :run_at, :attempts_max, :lease_us, :timeout_us,
       :shard_key, :cursor, :now, value, :trace
  FROM json_each(:payloads) WHERE TRUE
ON CONFLICT (id) DO NOTHING
