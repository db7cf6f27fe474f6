SELECT name, budget, unit, starts_at, ends_at, label, limit_micros, spent_micros, held_micros, overdraft_micros,
       threshold_percent
  FROM budget_windows
 WHERE ends_at > :since AND (:names IS NULL OR name IN (SELECT value FROM json_each(:names)))
 ORDER BY name, starts_at, ends_at, label LIMIT :limit
