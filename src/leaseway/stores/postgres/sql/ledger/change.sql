-- What an operator says about a budget.
SELECT :schema.change_budget($1, $2)
