-- Delete a session. No row is returned if there is none.
DELETE FROM api_sessions WHERE hash = :hash RETURNING hash
