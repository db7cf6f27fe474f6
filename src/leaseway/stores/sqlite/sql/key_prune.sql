-- Delete expired keys, a bounded number at a time.
DELETE FROM keys WHERE (tenant, key) IN (
  SELECT tenant, key FROM keys WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit)
