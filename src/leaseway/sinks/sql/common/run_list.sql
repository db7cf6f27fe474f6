SELECT id, source, spec_hash, started_at, finished_at, state, watermark, why
  FROM leaseway_runs
 WHERE target = :target AND (CAST(:source AS text) IS NULL OR source = :source)
 ORDER BY started_at DESC, id DESC
 LIMIT :limit
