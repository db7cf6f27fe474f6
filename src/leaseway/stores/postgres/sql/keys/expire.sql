-- Its life ends then, or before if it would have.
SELECT :schema.expire_api_key($1, $2)
