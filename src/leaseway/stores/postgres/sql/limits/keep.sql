-- Say that one still sits there.
SELECT :schema.keep($1, $2, $3, $4, $5, $6)
