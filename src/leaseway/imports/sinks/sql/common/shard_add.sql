-- An existing child is the same part of the source, because the key is derived from the predicate.
INSERT INTO leaseway_shards (run, key, label, predicate, estimated_rows, depth, state, fence, cursor, pages, rows, inserted,
                             updated, unchanged, stale, quarantined, requests, size_bytes, attempts, resumed_at,
                             page_limit, recent, guards, why, parent, started_at, finished_at, profile)
VALUES (:run, :key, :label, :predicate, :estimated_rows, :depth, :state, :fence, :cursor, :pages, :rows, :inserted,
        :updated, :unchanged, :stale, :quarantined, :requests, :size_bytes, :attempts, :resumed_at,
        :page_limit, :recent, :guards, :why, :parent, :started_at, :finished_at, :profile)
ON CONFLICT (run, key) DO NOTHING
