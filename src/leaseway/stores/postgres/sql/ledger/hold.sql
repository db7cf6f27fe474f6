-- Reserve all lines or none, in these windows.
SELECT * FROM :schema.hold_budgets($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
