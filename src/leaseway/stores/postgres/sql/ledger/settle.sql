-- What a call has cost.
SELECT * FROM :schema.settle_hold($1, $2, $3, $4)
