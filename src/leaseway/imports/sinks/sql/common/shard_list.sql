SELECT run, key, label, predicate, estimated_rows, depth, state, fence, cursor, pages, rows, inserted,
       updated, unchanged, stale, quarantined, requests, size_bytes, attempts, resumed_at,
       page_limit, recent, guards, why, parent, started_at, finished_at, profile
  FROM leaseway_shards
 WHERE run = :run
 ORDER BY key
