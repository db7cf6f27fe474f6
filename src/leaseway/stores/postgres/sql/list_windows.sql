-- Windows of budgets that end after $2 (NULL: now). $1 names (NULL: all), $3 at most, $4 now (NULL: the server's).
-- There is always a row with the time.
SELECT clock.now, name, budget, unit, starts_at, ends_at, label, limit_micros, spent_micros, held_micros, overdraft_micros,
       threshold_percent
  FROM (SELECT coalesce($4::bigint, :schema.now_us()) AS now) AS clock
  LEFT JOIN :schema.budget_windows ON ends_at > coalesce($2::bigint, clock.now) AND ($1::text[] IS NULL OR name = ANY ($1))
 ORDER BY name, starts_at, ends_at, label LIMIT $3
