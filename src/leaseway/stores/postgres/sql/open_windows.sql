-- The server's clock, and the windows of these budgets that have not ended. $1 names, $2 now (NULL: the server's).
SELECT clock.now, name, starts_at, ends_at, label, limit_micros, spent_micros, held_micros, overdraft_micros,
       threshold_percent
  FROM (SELECT coalesce($2::bigint, :schema.now_us()) AS now) AS clock
  LEFT JOIN :schema.budget_windows ON name = ANY ($1::text[]) AND ends_at > clock.now
