INSERT INTO budget_windows (name, budget, unit, starts_at, ends_at, label, limit_micros)
VALUES (:name, :budget, :unit, :starts_at, :ends_at, :label, :limit_micros)
