SELECT state, owner, ttl_us, deadline, name, budget, unit, starts_at, ends_at, label, amount_micros, actual_micros
  FROM holds JOIN hold_lines ON hold = holds.id JOIN budget_windows ON budget_windows.id = window_id
 WHERE holds.id = :id ORDER BY place
