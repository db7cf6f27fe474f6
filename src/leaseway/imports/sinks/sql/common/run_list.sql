SELECT id, source, spec_hash, started_at, finished_at, state, mode, since, watermark, concurrency,
       id_max, requests_max, requests, notes, why
  FROM leaseway_runs
 WHERE target = :target
   AND (CAST(:source AS text) IS NULL OR source = :source)
   AND (CAST(:state AS text) IS NULL OR state = :state)
   AND (CAST(:mode AS text) IS NULL OR mode = :mode)
 ORDER BY started_at DESC, id DESC
 LIMIT :limit
