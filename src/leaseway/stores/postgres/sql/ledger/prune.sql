-- Forget windows that are long over.
SELECT :schema.prune_budgets($1, $2, $3)
