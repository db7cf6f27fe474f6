-- A new session of a browser.
SELECT :schema.add_api_session($1, $2, $3, $4, $5, $6, $7)
