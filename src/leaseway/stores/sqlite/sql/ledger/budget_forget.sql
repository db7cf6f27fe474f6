DELETE FROM budgets WHERE name = :name
