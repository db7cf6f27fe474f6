-- Leave seats.
SELECT :schema.vacate($1, $2, $3, $4)
