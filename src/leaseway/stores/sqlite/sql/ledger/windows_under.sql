-- Windows for which this definition counts from now on, and that are not over.
SELECT id, limit_micros, spent_micros, held_micros, overdraft_micros, threshold_percent FROM budget_windows
 WHERE (budget = :name OR name = :name) AND ends_at > :now
