-- The caller has locked and checked the shard. The fence is checked again: a smaller one never writes.
UPDATE leaseway_shards
   SET state = :state, fence = :fence, cursor = :cursor, pages = :pages, rows = :rows, inserted = :inserted,
       updated = :updated, unchanged = :unchanged, stale = :stale, quarantined = :quarantined, requests = :requests,
       size_bytes = :size_bytes, attempts = :attempts, resumed_at = :resumed_at, page_limit = :page_limit,
       recent = :recent, guards = :guards, why = :why, started_at = :started_at, finished_at = :finished_at,
       profile = :profile
 WHERE run = :run AND key = :key AND fence <= :fence
RETURNING key
