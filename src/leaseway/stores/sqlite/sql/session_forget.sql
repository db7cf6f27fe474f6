-- Delete expired sessions of all keys.
DELETE FROM api_sessions WHERE hash IN (SELECT hash FROM api_sessions WHERE expires_at <= :now LIMIT :limit)
