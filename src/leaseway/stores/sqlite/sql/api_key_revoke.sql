-- From now on it opens nothing. No row back: there is none, or it was revoked before.
UPDATE api_keys SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL RETURNING id
