-- Store jobs. NULL: each stands for itself.
SELECT :schema.submit($1, $2, $3, $4, $5, $6, $7, $8)
