-- One session.
SELECT hash, key, created_at, expires_at FROM :schema.find_api_session($1)
