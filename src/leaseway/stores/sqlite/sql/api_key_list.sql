-- The keys of one tenant, or all.
SELECT id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at FROM api_keys
 WHERE :tenant IS NULL OR tenant = :tenant ORDER BY id LIMIT :limit
