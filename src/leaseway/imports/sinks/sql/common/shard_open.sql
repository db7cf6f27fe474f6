-- As the index says it, word for word: it holds the open ones only.
SELECT count(*)
  FROM leaseway_shards
 WHERE run = :run AND state IN ('waiting', 'running')
