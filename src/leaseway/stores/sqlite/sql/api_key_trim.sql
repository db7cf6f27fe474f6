-- Of the revoked and expired keys of a tenant, keep the newest.
DELETE FROM api_keys WHERE id IN (
  SELECT id FROM api_keys WHERE tenant = :tenant AND (revoked_at IS NOT NULL OR expires_at <= :now)
   ORDER BY created_at DESC, id DESC LIMIT -1 OFFSET :most
)
