INSERT INTO leaseway_runs (id, target, source, spec_hash, started_at, finished_at, state, mode, since, watermark, concurrency,
                           id_max, requests_max, requests, notes, why)
VALUES (:id, :target, :source, :spec_hash, :started_at, :finished_at, :state, :mode, :since, :watermark, :concurrency,
        :id_max, :requests_max, :requests, :notes, :why)
ON CONFLICT (id) DO NOTHING
RETURNING id
