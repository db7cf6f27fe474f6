-- Store jobs that differ in id and payload only. One statement for all of them: no step back into Python per row.
-- A known id was submitted before: nothing happens.
INSERT INTO jobs (id, lane, state, kind, priority, run_at, attempts_max, lease_us, timeout_us,
                  shard_key, cursor, created_at, payload, trace)
SELECT key, :lane, :state, :kind, :priority, :run_at, :attempts_max, :lease_us, :timeout_us,
       :shard_key, :cursor, :now, value, :trace
  FROM json_each(:payloads) WHERE TRUE
ON CONFLICT (id) DO NOTHING
