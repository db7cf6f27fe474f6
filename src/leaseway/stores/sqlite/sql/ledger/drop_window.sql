DELETE FROM budget_windows WHERE id = :id
