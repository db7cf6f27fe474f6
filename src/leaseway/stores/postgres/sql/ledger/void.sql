-- The call will not be made.
SELECT :schema.void_hold($1, $2)
