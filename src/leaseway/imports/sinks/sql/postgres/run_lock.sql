-- Locks the run, because several transactions can write at once (SQLite has one writer). The time is the server's.
SELECT id, source, spec_hash, started_at, finished_at, state, mode, since, watermark, concurrency,
       id_max, requests_max, requests, notes, why, target,
       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
  FROM leaseway_runs
 WHERE id = :id AND target = :target
   FOR NO KEY UPDATE
