SELECT id, limit_micros, spent_micros, held_micros, overdraft_micros, threshold_percent FROM budget_windows
 WHERE name = :name AND starts_at = :starts_at AND ends_at = :ends_at AND label = :label
