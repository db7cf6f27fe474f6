-- What an operator says.
SELECT :schema.change_limit($1, $2)
