-- The keys of one tenant, or all.
SELECT id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at FROM :schema.list_api_keys($1, $2)
