-- What an operator says, if nobody has said something else since he looked.
SELECT :schema.change_limit_from($1, $2, $3)
