INSERT INTO leaseway_runs (id, target, source, spec_hash, started_at, finished_at, state, mode, since, watermark, concurrency,
                           id_max, requests_max, requests, notes, why)
VALUES (:id, :target, :source, :spec_hash, :started_at, :finished_at, :state, :mode, :since, :watermark, :concurrency,
        :id_max, :requests_max, :requests, :notes, :why)
-- A run that exists is locked and not changed: in PostgreSQL, the commit of a repetition then waits for replication.
ON CONFLICT (id) DO UPDATE SET id = excluded.id WHERE false
RETURNING id
