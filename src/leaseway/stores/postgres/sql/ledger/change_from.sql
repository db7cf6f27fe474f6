-- What an operator says about a budget, if nobody has said something else since he looked.
SELECT :schema.change_budget_from($1, $2, $3)
