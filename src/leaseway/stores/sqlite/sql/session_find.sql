-- One session.
SELECT hash, key, created_at, expires_at FROM api_sessions WHERE hash = :hash
