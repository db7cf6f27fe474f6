SELECT count(*) FROM budget_windows WHERE budget = :name AND held_micros > 0
