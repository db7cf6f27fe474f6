SELECT id, source, spec_hash, started_at, finished_at, state, watermark, why, target
  FROM leaseway_runs
 WHERE id = :id
