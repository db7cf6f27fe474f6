-- Store jobs without keys that differ in their payloads only.
SELECT :schema.submit_alike($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
