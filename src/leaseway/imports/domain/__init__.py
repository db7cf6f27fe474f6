"""Values and decisions of partitioned imports: plan ─► shard jobs ─► page ─► upsert + cursor in one transaction."""
