-- What the code says about budgets.
SELECT :schema.declare_budgets($1, $2)
