INSERT INTO leaseway_runs (id, target, source, spec_hash, started_at, finished_at, state, watermark, why)
VALUES (:id, :target, :source, :spec_hash, :started_at, :finished_at, :state, :watermark, :why)
ON CONFLICT (id) DO NOTHING
RETURNING id
