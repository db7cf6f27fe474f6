-- Its life ends then, or before if it would have. No row back: there is none.
UPDATE api_keys SET expires_at = min(coalesce(expires_at, :at), :at) WHERE id = :id RETURNING id
