SELECT name, starts_at, ends_at, label, sum(budget_journal.held_micros), sum(budget_journal.spent_micros)
  FROM budget_journal JOIN budget_windows ON id = window_id GROUP BY id
