-- Windows that ended before this and in which nothing is open.
SELECT id FROM budget_windows WHERE ends_at <= :before AND held_micros = 0 ORDER BY ends_at, name LIMIT :limit
