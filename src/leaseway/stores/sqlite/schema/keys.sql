-- API keys and browser sessions. Only hashes of their secrets are stored. `scopes` is JSON.
-- The table `keys` is something else: it holds idempotency keys.
CREATE TABLE api_keys (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL,
  tenant TEXT NOT NULL,
  role TEXT NOT NULL,
  scopes TEXT NOT NULL,
  name TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  revoked_at INTEGER,
  used_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE api_sessions (
  hash TEXT PRIMARY KEY,
  key TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX api_sessions_of_key ON api_sessions (key, created_at);
CREATE INDEX api_sessions_expiring ON api_sessions (expires_at);
