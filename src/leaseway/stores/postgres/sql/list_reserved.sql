-- The ids from $1 up to $2 of holds that are held and not dispatched, at most $3. The partial index has only those.
SELECT id FROM :schema.holds WHERE state = 'held' AND id >= $1 AND id < $2 ORDER BY id LIMIT $3
