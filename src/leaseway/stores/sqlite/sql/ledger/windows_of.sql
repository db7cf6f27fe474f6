SELECT id FROM budget_windows WHERE budget = :name
