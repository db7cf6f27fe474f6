SELECT number, shard, position, external_id, code, problem, document
  FROM leaseway_quarantine AS bad
  JOIN leaseway_runs AS run ON run.id = bad.run
 WHERE run.target = :target AND (CAST(:run AS text) IS NULL OR bad.run = :run)
 ORDER BY number
 LIMIT :limit
