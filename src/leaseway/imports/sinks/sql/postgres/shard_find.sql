-- Locks the shard, because several transactions can write at once (SQLite has one writer). The time is the server's.
SELECT shard.run, key, label, predicate, estimated_rows, depth, shard.state, fence, cursor, pages, rows, inserted,
       updated, unchanged, stale, quarantined, shard.requests, size_bytes, attempts, resumed_at,
       page_limit, recent, guards, shard.why, parent, shard.started_at, shard.finished_at, profile, run.source,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
  FROM leaseway_shards AS shard
  JOIN leaseway_runs AS run ON run.id = shard.run
 WHERE shard.run = :run AND shard.key = :key AND run.target = :target
   FOR UPDATE OF shard
