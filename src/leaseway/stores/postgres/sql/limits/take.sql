-- All asks or none.
SELECT * FROM :schema.take($1, $2, $3, $4, $5, $6, $7, $8)
