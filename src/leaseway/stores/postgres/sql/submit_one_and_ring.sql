-- The same, and tell the workers.
CALL :schema.submit_one_and_ring($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
