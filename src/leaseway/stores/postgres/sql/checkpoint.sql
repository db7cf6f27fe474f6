-- Keep the cursor, if the caller still holds the lease.
SELECT :schema.checkpoint($1, $2, $3, $4)
