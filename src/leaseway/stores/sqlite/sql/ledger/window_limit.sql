UPDATE budget_windows SET budget = :budget, limit_micros = :limit_micros, overdraft_micros = :overdraft_micros, told = :told
 WHERE id = :id
