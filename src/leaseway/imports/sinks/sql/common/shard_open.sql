-- The condition must be the same as that of the partial index.
SELECT count(*)
  FROM leaseway_shards
 WHERE run = :run AND state IN ('waiting', 'running')
