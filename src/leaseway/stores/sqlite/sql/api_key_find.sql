-- One key of the API.
SELECT id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at FROM api_keys WHERE id = :id
