-- From now on it opens nothing.
SELECT :schema.revoke_api_key($1, $2)
