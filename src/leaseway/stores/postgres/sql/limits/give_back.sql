-- Return what was not used.
SELECT :schema.give_back($1, $2, $3, $4, $5, $6, $7, $8)
