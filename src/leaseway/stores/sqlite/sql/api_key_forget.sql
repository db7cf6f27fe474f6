-- Keys that have been dead for long.
DELETE FROM api_keys WHERE id IN (
  SELECT id FROM api_keys WHERE expires_at <= :before OR revoked_at <= :before LIMIT :limit
)
