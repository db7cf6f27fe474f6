-- Keep how far running jobs have come.
SELECT :schema.report($1, $2, $3)
