-- Forget what is old enough.
SELECT :schema.prune($1, $2, $3)
