-- One key of the API.
SELECT id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at FROM :schema.find_api_key($1)
