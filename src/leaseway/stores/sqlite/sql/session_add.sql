-- Store a browser session. Adding it again changes nothing.
INSERT INTO api_sessions (hash, key, created_at, expires_at) VALUES (:hash, :key, :created_at, :expires_at)
ON CONFLICT (hash) DO NOTHING
