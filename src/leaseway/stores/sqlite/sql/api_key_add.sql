-- A new key of the API.
INSERT INTO api_keys (id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at)
VALUES (:id, :hash, :tenant, :role, :scopes, :name, :created_at, :expires_at, :revoked_at, :used_at)
