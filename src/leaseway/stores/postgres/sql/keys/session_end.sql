-- Who leaves is gone.
SELECT :schema.end_api_session($1)
