SELECT name, starts_at, ends_at, label, held_micros, spent_micros,
       spent_micros >= 0 AND held_micros >= 0 AND spent_micros + held_micros <= limit_micros + overdraft_micros
  FROM budget_windows
