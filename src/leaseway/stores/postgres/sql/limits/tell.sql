-- What the provider said.
SELECT :schema.tell($1, $2, $3, $4, $5, $6, $7, $8)
