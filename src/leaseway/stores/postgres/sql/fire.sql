-- Move a schedule on and submit its jobs.
SELECT :schema.fire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
