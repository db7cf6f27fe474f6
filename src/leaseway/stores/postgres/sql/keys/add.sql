-- A new key of the API.
SELECT :schema.add_api_key($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
