-- Who leaves is gone. No row back: there was none.
DELETE FROM api_sessions WHERE hash = :hash RETURNING hash
