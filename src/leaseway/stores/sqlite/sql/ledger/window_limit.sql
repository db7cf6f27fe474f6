UPDATE budget_windows SET budget = :budget, limit_micros = :limit_micros, overdraft_micros = :overdraft_micros,
       threshold_percent = :threshold_percent
 WHERE id = :id
