SELECT id, source, spec_hash, started_at, finished_at, state, mode, since, watermark, concurrency,
       id_max, requests_max, requests, notes, why, target
  FROM leaseway_runs
 WHERE id = :id AND target = :target
