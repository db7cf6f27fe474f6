SELECT definition, version FROM budgets ORDER BY name
