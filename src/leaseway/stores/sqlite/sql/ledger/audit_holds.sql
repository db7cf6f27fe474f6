SELECT name, starts_at, ends_at, label,
       sum(CASE WHEN state IN ('held', 'dispatched') THEN amount_micros ELSE 0 END), sum(coalesce(actual_micros, 0))
  FROM holds JOIN hold_lines ON hold = holds.id JOIN budget_windows ON budget_windows.id = window_id
 GROUP BY budget_windows.id
