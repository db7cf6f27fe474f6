-- How many keys of a tenant are valid.
SELECT count(*) FROM api_keys
 WHERE tenant = :tenant AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)
